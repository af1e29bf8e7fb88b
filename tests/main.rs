//! The project's tests, one module for each thing that is promised.
mod emulation; // both kernels in the emulator: every shape, several thread orders, bit for bit
