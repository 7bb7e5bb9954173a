"""The function that is to be called for each job: where it is found, and how it is called."""

import asyncio
import inspect
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from beanlite.client import BlockingJob, Job, Statistics
from beanlite.errors import ConfigError, place_of

_UNDONE: Final = (Awaitable, GeneratorType, AsyncGeneratorType)
_SOUGHT: Final = "a function is named as module:function, such as app.mail:send"


class JobInThread(BlockingJob):
    """A job for a function in a thread: its commands are sent by the loop."""

    __slots__ = ("_job", "_loop")

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self._job = job
        self._loop = loop
        self.id = job.id
        self.body = job.body

    def delete(self) -> None:
        """Delete the job."""
        self._wait_for(self._job.delete())

    def release(self, pri: int | None = None, delay_s: int = 0, note: str = "") -> None:
        """Give the job back."""
        self._wait_for(self._job.release(pri, delay_s, note))

    def bury(self, pri: int | None = None, note: str = "") -> None:
        """Set the job aside."""
        self._wait_for(self._job.bury(pri, note))

    def touch(self) -> None:
        """Have the ttr begin anew."""
        self._wait_for(self._job.touch())

    def stats(self) -> Statistics:
        """Return the statistics of the job."""
        statistics: Statistics = self._wait_for(self._job.stats())
        return statistics

    @property
    def is_finished(self) -> bool:
        """Whether it was deleted, released or buried."""
        return self._job.is_finished

    @property
    def is_lost(self) -> bool:
        """Whether its connection is gone."""
        return self._job.is_lost

    def _wait_for(self, command: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - what the command returns
        return asyncio.run_coroutine_threadsafe(command, self._loop).result()


class CallInThread:
    """A call of a plain function, for a thread."""

    def __init__(self, function: Callable[[BlockingJob], object], job: BlockingJob) -> None:
        self._function = function
        self._job = job
        self._thread: int | None = None

    def __call__(self) -> BaseException | None:
        """Return the error of the function, whatever it is: a future could not take each."""
        self._thread = threading.get_ident()
        try:
            result = self._function(self._job)
        except BaseException as error:  # noqa: BLE001 - SystemExit as well is the job's failure
            return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        return _undone(result)

    def stack(self) -> str:
        """Return where the thread is now."""
        frame = sys._current_frames().get(self._thread or 0)  # noqa: SLF001 - documented, for debuggers
        frames = traceback.extract_stack(frame) if frame is not None else []
        ours = [at for at, each in enumerate(frames) if each.filename == __file__]
        return "".join(traceback.format_list(frames[ours[-1] + 1 :] if ours else frames))


async def call_async(function: Callable[[Job], Coroutine[Any, Any, object]], job: Job) -> BaseException | None:
    """Call an async function, and return its error."""
    try:
        result = await function(job)
    except BaseException as error:  # noqa: BLE001 - as above; that it was cancelled the caller knows
        return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    return _undone(result)


def _undone(result: object) -> TypeError | None:
    """Return an error if the function has returned what would do the work, such as a coroutine or a generator."""
    if not issubclass(type(result), _UNDONE):  # without its own code, such as that of a proxy
        return None
    if isinstance(result, CoroutineType) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
        result.close()  # or Python would warn
    return TypeError(f"the function has returned a {type(result).__name__}, which nobody runs")


def line_of(error: BaseException) -> str:
    """Return an error as one line, even if it has no text to show."""
    try:
        text = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - its __str__ has failed, by whatever
        text = "its text can't be shown"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def load(name: str) -> Callable[[Any], Any]:
    """Import ``module:function``, from the working directory first. ConfigError: that is not possible."""
    module_name, colon, path = name.partition(":")
    if not colon or not path or not all(part.isidentifier() for part in [*module_name.split("."), *path.split(".")]):
        raise ConfigError(f"{_SOUGHT}, not {name!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{name}: there is no module {error.name} in {Path.cwd()}, or installed") from error
        raise _not_imported(name, module_name, error) from error
    except (Exception, SystemExit) as error:
        raise _not_imported(name, module_name, error) from error
    try:
        function = reduce(getattr, path.split("."), module)
    except AttributeError:
        raise ConfigError(f"{name}: {getattr(module, '__file__', None) or module_name} has no {path}") from None
    _check(name, function)
    return function  # type: ignore[return-value]  # it was checked


def _not_imported(name: str, module_name: str, error: Exception | SystemExit) -> ConfigError:
    place = "" if isinstance(error, SyntaxError) else f" ({place_of(error)})"  # which its message has
    return ConfigError(f"{name}: {module_name} can't be imported: {line_of(error)}{place}")


def _check(name: str, function: object) -> None:
    if not callable(function):
        raise ConfigError(f"{name} is no function, but {type(function).__name__}")
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise ConfigError(f"{name} is a generator, which does nothing when it is called")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise ConfigError(f"{name} can't be called with a job alone: {error}") from error
    except ValueError:  # its parameters are not known
        return


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function, or an object that can be called, is async."""
    return _is(inspect.iscoroutinefunction, function)


def _is(kind: Callable[[object], bool], function: object) -> bool:
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004 - not whether it can be called
