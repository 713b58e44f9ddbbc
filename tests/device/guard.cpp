// The part of a CUDA device that autograd asks for in C++: that there is one, and which is current.
//
// The wheels of PyTorch for CPUs have none. Streams and events of the stand-in are in `machine.py`;
// autograd's own ones do nothing, as backward passes run on the stream of their caller here.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::Stream;

const Device DEVICE(DeviceType::CUDA, 0);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  DeviceIndex deviceCount() const noexcept override { return 1; }
  Device exchangeDevice(Device) const override { return DEVICE; }
  Device getDevice() const override { return DEVICE; }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, DEVICE); }
  Stream getDefaultStream(Device) const override { return Stream(Stream::DEFAULT, DEVICE); }
  Stream exchangeStream(Stream stream) const noexcept override { return stream; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex current_device() const override { return 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
};

static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));

// Importing PyTorch has made this object already, so it is made anew where it is.
void* hooks() { return const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks()); }

}  // namespace

extern "C" {

// Autograd asks once a process how many devices there are: before its first backward pass.
void register_guard() {
  static Guard guard;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)].store(&guard);
}

void install() { new (hooks()) Hooks(); }
void remove_again() { new (hooks()) at::CUDAHooksInterface(); }

}
