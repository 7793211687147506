// Memory that NCCL allocates and registers (NCCL User Guide, "User Buffer Registration", "Window
// Registration").

#include <fmt/format.h>
#include <nccl.h>

#include "machine/base/error.h"
#include "machine/link/nccl.h"

namespace machine {
namespace {

[[noreturn, maybe_unused]] void refuse(const char* call, const char* since) {
  throw MachineError(fmt::format("NCCL {}.{}.{} has no {}; use NCCL {} or later", NCCL_MAJOR,
                                 NCCL_MINOR, NCCL_PATCH, call, since));
}

}  // namespace

Memory NcclLink::allocate_registered(std::size_t bytes, Category category, Registered how) {
#if NCCL_VERSION_CODE < 21900
  refuse("ncclMemAlloc", "2.19");
#else
#if NCCL_VERSION_CODE < 22700
  if (how == Registered::window) refuse("ncclCommWindowRegister", "2.27");
#endif
  const ncclComm_t communicator = this->communicator();
  make_current();
  void* data = nullptr;
  call("ncclMemAlloc", -1, bytes, [&] { return ncclMemAlloc(&data, bytes); });
  // Frees the memory when the device no longer uses it, also if the registration below fails.
  auto handle = std::make_shared<void*>(nullptr);
  Memory memory =
      wiring_.device->adopt(data, bytes, category, [this, data, handle, how, communicator] {
        make_current_to_free();
        // An aborted communicator has released its registrations.
        const bool registered = *handle && wiring_.communicator == communicator;
        if (registered && how == Registered::buffer) ncclCommDeregister(communicator, *handle);
#if NCCL_VERSION_CODE >= 22700
        if (registered && how == Registered::window)
          ncclCommWindowDeregister(communicator, static_cast<ncclWindow_t>(*handle));
#endif
        ncclMemFree(data);
      });
  if (how == Registered::buffer)
    call("ncclCommRegister", -1, bytes,
         [&] { return ncclCommRegister(communicator, data, bytes, handle.get()); });
#if NCCL_VERSION_CODE >= 22700
  if (how == Registered::window)
    call("ncclCommWindowRegister", -1, bytes, [&] {
      ncclWindow_t window = nullptr;
      const ncclResult_t result =
          ncclCommWindowRegister(communicator, data, bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
      *handle = window;
      return result;
    });
#endif
  return memory;
#endif
}

}  // namespace machine
