// The CPU's implementations of the gradients.
#include "../implementation_grad.h"

namespace ortflash {

GradImplementationList cpu_grad_implementations() { return {nullptr, 0}; }

}  // namespace ortflash
