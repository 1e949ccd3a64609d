"""HTTP/1.1 as uvicorn speaks it with httptools, with bounds on what a client may keep us waiting for or holding.

uvicorn bounds the idle time between two requests, and how much of a body it holds. Here are the others:
- headers that are too large are answered 431, headers that do not come to an end in time are cut off
- a client that does not take its answer for a while is cut off, so that shutting down need not wait for it
A request whose headers come in one piece, as nearly all do, costs no timer.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lsmfs.server.config import Limits

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"  #


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    limits: Limits

    _is_pending = True  # the headers of a request are still to come, or to end
    _is_too_large = False
    _pending_bytes = 0
    _header_timer: asyncio.TimerHandle | None = None
    _answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_answer_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_too_large:
            return
        super().data_received(data)
        if self._is_pending and not self.transport.is_closing():
            self._pending_bytes += len(data)
            if self._pending_bytes > self.limits.header_bytes_max:
                self._is_too_large = True
                self.send_400_response("")
            elif self._header_timer is None:
                self._start_header_timer()

    def on_message_begin(self) -> None:
        self._is_pending, self._pending_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_pending = False
        self._stop_header_timer()
        size = len(self.url) + sum([len(name) + len(value) for name, value in self.headers])
        if size > self.limits.header_bytes_max:
            self._is_too_large = True
            raise ValueError("headers too large")  # the parser stops, and calls send_400_response
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if self._is_too_large:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        else:
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        if self._answer_timer is None:
            self._answer_timer = self.loop.call_later(self.limits.body_idle_seconds_max, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stop_answer_timer()
        super().resume_writing()

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.limits.header_seconds_max, self.transport.abort)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None


def protocol_with(limits: Limits) -> type[LimitedProtocol]:
    """The protocol with these limits: uvicorn makes the objects, so they are the class's."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})
