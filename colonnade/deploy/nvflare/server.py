"""The engine's server: it asks every site, compares the answers, and lets all begin."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.impl.controller import Controller, Task
from nvflare.apis.shareable import Shareable
from nvflare.widgets.info_collector import InfoCollector

from colonnade.deploy.nvflare import job, told
from colonnade.wire import store

GRACE_SECONDS = 10.0  # when a site has failed, for the others to say how far they are


class Conductor(Controller):  # type: ignore[misc]  # NVFlare has no types
    """The workflow of a job. It sees numbers about the training, and no message of a party."""

    def __init__(self, parties: Sequence[str], facts: dict[str, str]) -> None:
        super().__init__(task_check_period=0.1)
        self._parties, self._facts = list(parties), facts
        self._told: dict[str, dict[str, Any]] = {}
        self._refused: list[str] = []
        self._events: list[list[Any]] = []  # [party, what it told], epoch by epoch
        self._now: dict[str, dict[str, Any]] = {}  # how far every party is

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """1. Ask and compare. 2. Train."""
        self._ask(job.CHECK, abort_signal, fl_ctx)
        if abort_signal.triggered:
            return
        self._refused = job.complaints(self._facts, self._told, self._parties)
        self._told = {}
        if self._refused:
            self.system_panic(f"refused before training: {'; '.join(self._refused)}", fl_ctx)
            return
        self._ask(job.TAKE_PART, abort_signal, fl_ctx)
        failed = {name: said["problem"] for name, said in self._told.items() if "problem" in said}
        if failed and not abort_signal.triggered:
            why = "; ".join(f"'{name}': {problem}" for name, problem in failed.items())
            self.system_panic(why, fl_ctx)  # which stops those that have not noticed

    def start_controller(self, fl_ctx: Any) -> None: ...

    def stop_controller(self, fl_ctx: Any) -> None:
        """Also of a job that is aborted: what the sites said becomes a part of its result."""
        workspace = fl_ctx.get_engine().get_workspace()
        folder = Path(workspace.get_run_dir(fl_ctx.get_job_id()))
        content = {"refused": self._refused, "sites": self._told}
        store.write_text(json.dumps(content), folder / job.TOLD)

    def process_result_of_unknown_task(self, *_: Any, **__: Any) -> None: ...

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        super().handle_event(event_type, fl_ctx)
        if event_type == job.PROGRESS:
            data = fl_ctx.get_prop(FLContextKey.EVENT_DATA)
            party = job.party_of(str(data.get_peer_prop(ReservedKey.IDENTITY_NAME, "")))
            if party in self._parties:
                self._hear(party, told.progress(data["told"]))
        elif event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR)
            shown = {"events": list(self._events), "now": dict(self._now)}
            collector.set_info(job.STATS, {"told": json.dumps(shown)})

    def _hear(self, party: str, said: dict[str, Any]) -> None:
        if "epoch" in said:
            self._events.append([party, said])
        self._now.setdefault(party, {}).update({k: v for k, v in said.items() if k != "epoch"})

    def _ask(self, task: str, abort_signal: Any, fl_ctx: Any) -> None:
        """One call at every site; returns when all have answered, or soon after one has failed."""
        self.broadcast_and_wait(
            task=Task(task, Shareable(), result_received_cb=self._answered),
            fl_ctx=fl_ctx,
            targets=[job.site_of(party) for party in self._parties],
            min_responses=len(self._parties),
            abort_signal=abort_signal,
        )

    def _answered(self, client_task: Any, fl_ctx: Any) -> None:
        name, result = job.party_of(client_task.client.name), client_task.result
        otherwise = f"the engine says {result.get_return_code()}: see the site's log"
        self._told[name] = told.answer(result.get("told"), otherwise)
        if "problem" in self._told[name]:
            timer = threading.Timer(GRACE_SECONDS, self.cancel_task, [client_task.task])
            timer.daemon = True
            timer.start()
