; Address spaces, which Rust cannot name. Linked with the kernels before optimisation: once these are inlined, LLVM infers
; that a pointer derived from the shared array is a shared one, and emits ld.shared and st.shared for it.
target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

; Matrices of a warpgroup's products are swizzled by their addresses, whose period is 1,024 bytes.
@gpu_dynamic_shared = external addrspace(3) global [0 x i8], align 1024

define ptr @__gpu_dynamic_shared() alwaysinline {
  ret ptr addrspacecast (ptr addrspace(3) @gpu_dynamic_shared to ptr)
}

define i32 @__gpu_shared_address(ptr %pointer) alwaysinline {
  %shared = addrspacecast ptr %pointer to ptr addrspace(3)
  %wide = ptrtoint ptr addrspace(3) %shared to i64
  %address = trunc i64 %wide to i32
  ret i32 %address
}
