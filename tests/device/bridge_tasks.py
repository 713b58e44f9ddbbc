"""Tasks on a pretended device, which a server hosts; without PyTorch, Python 3.6 runs them."""

import numpy as np

import __main__

#: The stream of the library of `DeviceTask`, not CUDA's default.
STREAM = 7

_OPEN = []


def pretend():
    """Let this process have a device."""
    from tests.device.installed import installed, unavailable

    assert unavailable() is None
    machine = installed()
    machine.__enter__()
    _OPEN.append(machine)


def torch_task(num_envs, style, scripts, **options):
    """A task of PyTorch, on a device that is pretended in this process, too."""
    from tests.everstep_adapters.isaacgym.isaacgym_tasks import TASKS

    pretend()
    return TASKS[style](scripts, 7, device="cuda:0", rl_device="cuda:0", **options)


class DeviceArray:
    """An array of a library that has its own stream, and `__cuda_array_interface__` alone."""

    def __init__(self, array):
        cuda = __main__.cuda_module()
        self._reader = __main__.DeviceReader(cuda.Device.of(0))
        self._array = self._reader.upload(array, STREAM)
        self.shape, self.dtype = array.shape, array.dtype

    @property
    def __cuda_array_interface__(self):
        return dict(self._array.__cuda_array_interface__, stream=STREAM, version=3)

    def numpy(self):
        return self._reader.download(self._array)

    def write(self, array):
        """Overwrite it where it is, as simulators do."""
        data = np.ascontiguousarray(array, self.dtype)
        assert data.shape == self.shape
        self._reader._device.upload(self._array.pointer, data.ctypes.data, data.nbytes, STREAM)


def host_array(x):
    """The numbers of an array that the server has given."""
    cuda = __main__.cuda_module()
    array = cuda.array_of_interface(x)
    assert array.pointer, "new memory"
    device = cuda.Device.of(0)
    device.follow(STREAM, array.stream)
    return __main__.DeviceReader(device).download(array)


class DeviceTask:
    """A task of `numpy_tasks` whose arrays are on the device, and overwritten in each env step."""

    num_actions = 1

    def __init__(self, task):
        self._task, self.num_envs = task, task.num_envs
        self.max_episode_length = task.max_episode_length
        self.extras = {}
        for name in ("progress_buf", "reset_buf", "obs_buf"):
            setattr(self, name, DeviceArray(np.asarray(getattr(task, name))))
        self._rewards = DeviceArray(np.zeros(self.num_envs))

    def _run(self, function):
        task = self._task
        for name in ("progress_buf", "reset_buf"):
            setattr(task, name, getattr(self, name).numpy())
        found = function()
        for name in ("progress_buf", "reset_buf", "obs_buf"):
            getattr(self, name).write(getattr(task, name))
        return found

    def step(self, actions):
        _, rewards, _, extras = self._run(lambda: self._task.step(host_array(actions)))
        self._rewards.write(rewards)
        self.extras = extras
        return {"obs": self.obs_buf}, self._rewards, self.reset_buf, self.extras

    def reset_idx(self, env_ids):
        self._run(lambda: self._task.reset_idx(host_array(env_ids)))

    def state_dict(self):
        return {"place": self.obs_buf, "k": 3}

    def load_state_dict(self, state):
        self.obs_buf.write(host_array(state["place"]))


def numpy_task(num_envs, style, scripts):
    from tests.everstep_adapters.bridge.numpy_tasks import VecTask

    return DeviceTask(VecTask(style, scripts))


class Walk:
    """A small task of PyTorch alone, of any version, that is reset in the same env step."""

    num_actions, max_episode_length = 1, 9

    def __init__(self, num_envs, device):
        import torch

        self.num_envs, self.device = num_envs, device
        self.place = torch.zeros(num_envs, 3, device=device)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.rewards = torch.zeros(num_envs, device=device)

    def get_observations(self):
        return self.place

    def reset(self):
        self.place.zero_()
        self.episode_length_buf.zero_()
        return self.place, None

    def step(self, actions):
        self.episode_length_buf += 1
        self.place[:, 0] += actions[:, 0]
        self.place[:, 1] = self.episode_length_buf
        self.rewards.copy_(self.place[:, 0])
        late = self.episode_length_buf > self.max_episode_length
        done = late | (self.place[:, 0] > 2)
        self.place.masked_fill_(done.unsqueeze(1), 0.0)
        self.episode_length_buf.masked_fill_(done, 0)
        return self.place, None, self.rewards, done, {"time_outs": late}


def walk(num_envs, device="cuda:0"):
    return Walk(num_envs, device)


def pretended_walk(num_envs):
    pretend()
    return Walk(num_envs, "cuda:0")
