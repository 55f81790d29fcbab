"""What all sections of a configuration have in common."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

__all__ = ["Config"]


class Config(BaseModel):
    """Base of all sections: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    added: ClassVar[frozenset[str]] = frozenset()
    """Fields that came after the section's first version."""

    def settings(self) -> dict[str, Any]:
        """The section as it enters a stage's identity: added fields at their defaults are left out, so that a configuration that does not
        use them keeps the ids that it always had.
        """
        fields = type(self).model_fields
        unused = {name for name in self.added if getattr(self, name) == fields[name].default}
        return self.model_dump(exclude=unused)
