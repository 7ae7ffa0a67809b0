"""Reads facts and memory of a GPU from the driver's own library. Needs no package; changes nothing on the GPU."""

import ctypes


class Memory(ctypes.Structure):
    """The answer of `nvmlDeviceGetMemoryInfo`."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


SM_CLOCK, MEMORY_CLOCK = 1, 2


class NoNvml(Exception):
    """The library is missing or refuses; the message says which call."""


class Gpu:
    """One GPU, by its number."""

    def __init__(self, number):
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            raise NoNvml("the driver's management library is missing") from None
        self._call("nvmlInit_v2")
        self._handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(number), ctypes.byref(self._handle))

    def used_bytes(self):
        """Memory in use by all processes together."""
        return self._memory().used

    def name(self):
        return self._text("nvmlDeviceGetName", self._handle)

    def facts(self):
        """Pairs of a name and its value; what the driver does not tell is left out."""
        facts = {"GPU": self.name(), "GPU memory": f"{self._memory().total / 2**30:.1f} GiB"}
        readings = {
            "driver": lambda: self._text("nvmlSystemGetDriverVersion"),
            "CUDA of the driver": self._cuda_version,
            "clocks at most": lambda: f"{self._clock(SM_CLOCK)} MHz, memory {self._clock(MEMORY_CLOCK)} MHz",
            "power limit": lambda: f"{self._number('nvmlDeviceGetEnforcedPowerLimit') / 1000:.0f} W",
        }
        for name, read in readings.items():
            try:
                facts[name] = read()
            except NoNvml:
                continue
        return facts

    def _memory(self):
        memory = Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory))
        return memory

    def _cuda_version(self):
        version = ctypes.c_int()
        self._call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(version))
        return f"{version.value // 1000}.{version.value % 1000 // 10}"

    def _clock(self, kind):
        clock = ctypes.c_uint()
        self._call("nvmlDeviceGetMaxClockInfo", self._handle, ctypes.c_uint(kind), ctypes.byref(clock))
        return clock.value

    def _number(self, function):
        number = ctypes.c_uint()
        self._call(function, self._handle, ctypes.byref(number))
        return number.value

    def _text(self, function, *arguments):
        text = ctypes.create_string_buffer(128)
        self._call(function, *arguments, text, ctypes.c_uint(len(text)))
        return text.value.decode(errors="replace")

    def _call(self, function, *arguments):
        try:
            status = getattr(self._library, function)(*arguments)
        except AttributeError:
            raise NoNvml(f"the driver has no {function}") from None
        if status:
            raise NoNvml(f"{function} answered {status}")
