"""Mods for a ClientApp that is written already."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod

__all__ = ["WrappedClientApp", "attach"]


class WrappedClientApp(ClientApp):
    """A ClientApp with mods around all that it does; Flower itself binds an app's mods when its functions are registered."""

    def __init__(self, app: ClientApp, mods: tuple[Mod, ...]) -> None:
        super().__init__()
        self.app, self.around = app, mods

    def __call__(self, message: Message, context: Context) -> Message:
        """Pass a message through the mods, the first outermost, to the app and its own mods."""
        call: ClientAppCallable = self.app
        for mod in reversed(self.around):
            call = _bound(mod, call)
        return call(message, context)


def _bound(mod: Mod, call: ClientAppCallable) -> ClientAppCallable:
    def through(message: Message, context: Context) -> Message:
        return mod(message, context, call)

    return through


def attach(app: ClientApp, *mods: Mod) -> ClientApp:
    """Return the app with mods around its own, the first outermost."""
    return WrappedClientApp(app, mods)
