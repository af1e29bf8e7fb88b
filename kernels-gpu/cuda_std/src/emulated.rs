//! Each word as a call of the emulator, with the place in the kernel's source for its faults.
//!
//! Accesses are not inlined into the kernel: their checks would swell it, and the call costs little beside them.
use std::panic::Location;
use std::sync::OnceLock;
use std::time::Instant;

use crate::emulator;
use crate::memory::Quad;

#[inline(always)]
#[track_caller]
pub fn thread_idx_x() -> u32 {
    emulator::thread_index()
}

/// On the GPU the compiler takes the fact for granted; here it is checked.
#[inline(always)]
#[track_caller]
pub unsafe fn assume(fact: bool) {
    assert!(fact, "what the kernel assumes of its launch does not hold");
}

/// A bound of a kernel. On the GPU its violation traps.
#[inline(always)]
#[track_caller]
pub fn require(condition: bool) {
    assert!(condition, "an index out of the bounds of its tile");
}

#[inline(always)]
#[track_caller]
pub fn block_idx_x() -> u32 {
    emulator::block_index()[0]
}

#[inline(always)]
#[track_caller]
pub fn block_idx_y() -> u32 {
    emulator::block_index()[1]
}

/// Since the first call.
#[inline(always)]
pub fn global_nanoseconds() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// At one cycle a nanosecond.
#[inline(always)]
pub fn clock_cycles() -> u64 {
    global_nanoseconds()
}

#[inline(always)]
pub fn sleep<const NANOSECONDS: u32>() {
    // The operating system would take many times as long.
    let start = Instant::now();
    while start.elapsed().as_nanos() < NANOSECONDS.into() {
        std::hint::spin_loop();
    }
}

#[inline(always)]
#[track_caller]
pub unsafe fn sync_threads() {
    emulator::sync_threads(Location::caller());
}

/// At this one place, wherever the roles come from.
#[inline(always)]
pub unsafe fn sync_roles(_threads: u32) {
    emulator::sync_threads(Location::caller());
}

#[inline(always)]
pub fn let_next_launch_start() {}

#[inline(always)]
pub fn wait_for_last_launch() {}

#[inline(always)]
#[track_caller]
pub unsafe fn sync_warp() {
    emulator::sync_warp(Location::caller());
}

#[inline(always)]
#[track_caller]
pub unsafe fn warp_shuffle_xor(value: f32, lane_mask: u32) -> f32 {
    emulator::shuffle_xor(value, lane_mask, Location::caller())
}

#[inline(always)]
#[track_caller]
pub unsafe fn warp_shuffle_idx(value: f32, source: u32) -> f32 {
    emulator::shuffle_index(value, source, Location::caller())
}

#[inline(always)]
#[track_caller]
pub unsafe fn warp_shuffle_up(value: f32, delta: u32) -> f32 {
    emulator::shuffle_up(value, delta, Location::caller())
}

#[inline(always)]
#[track_caller]
pub unsafe fn warp_max(value: u32) -> u32 {
    emulator::warp_max(value, Location::caller())
}

#[inline(always)]
#[track_caller]
pub fn dynamic_shared_mem(bytes: usize) -> *mut u8 {
    emulator::shared_memory(bytes, Location::caller())
}

#[inline(always)]
#[track_caller]
pub unsafe fn shared_read(pointer: *const f32) -> f32 {
    emulator::shared_read(pointer, Location::caller())
}

#[inline(always)]
#[track_caller]
pub unsafe fn shared_write(pointer: *mut f32, value: f32) {
    emulator::shared_write(pointer, value, Location::caller());
}

#[inline(always)]
#[track_caller]
pub unsafe fn shared_read_quad(pointer: *const f32) -> Quad {
    emulator::shared_read_quad(pointer, Location::caller())
}

#[inline(always)]
#[track_caller]
pub unsafe fn shared_read_pair(pointer: *const f32) -> [f32; 2] {
    emulator::shared_read_pair(pointer, Location::caller())
}

#[inline(always)]
#[track_caller]
pub unsafe fn shared_write_quad(pointer: *mut f32, value: Quad) {
    emulator::shared_write_quad(pointer, value, Location::caller());
}

#[inline(always)]
#[track_caller]
pub unsafe fn shared_write_pair(pointer: *mut f32, value: [f32; 2]) {
    emulator::shared_write_pair(pointer, value, Location::caller());
}

#[inline(always)]
#[track_caller]
pub unsafe fn global_read<T: Copy>(pointer: *const T) -> T {
    emulator::global_read(pointer, align_of::<T>(), Location::caller())
}

/// Memory does not change under the emulator: the host waits for it.
#[inline(always)]
#[track_caller]
pub unsafe fn global_read_volatile(pointer: *const u32) -> u32 {
    emulator::global_read(pointer, align_of::<u32>(), Location::caller())
}

#[inline(always)]
#[track_caller]
pub unsafe fn global_read_quad(pointer: *const f32) -> Quad {
    emulator::global_read(pointer.cast::<Quad>(), align_of_quad(), Location::caller())
}

#[inline(always)]
#[track_caller]
pub unsafe fn global_write<T: Copy>(pointer: *mut T, value: T) {
    emulator::global_write(pointer, value, align_of::<T>(), Location::caller());
}

#[inline(always)]
#[track_caller]
pub unsafe fn global_write_quad(pointer: *mut f32, value: Quad) {
    emulator::global_write(pointer.cast::<Quad>(), value, align_of_quad(), Location::caller());
}

#[inline(always)]
#[track_caller]
pub unsafe fn global_write_if(condition: bool, pointer: *mut f32, value: f32) {
    if condition {
        emulator::global_write(pointer, value, align_of::<f32>(), Location::caller());
    }
}

#[inline(always)]
#[track_caller]
pub unsafe fn shared_write_if(condition: bool, pointer: *mut f32, value: f32) {
    if condition {
        // SAFETY: the caller's contract.
        unsafe { shared_write(pointer, value) }
    }
}

/// What the GPU's 16-byte accesses need; the type itself asks for less.
const fn align_of_quad() -> usize {
    size_of::<Quad>()
}

#[inline(always)]
#[track_caller]
pub unsafe fn copy_async_16(destination: *mut f32, source: *const f32) {
    emulator::copy_async_16(destination, source, Location::caller());
}

#[inline(always)]
#[track_caller]
pub unsafe fn copy_async_4(destination: *mut f32, source: *const f32) {
    emulator::copy_async_4(destination, source, Location::caller());
}

#[inline(always)]
#[track_caller]
pub fn copy_async_commit() {
    emulator::commit();
}

#[inline(always)]
#[track_caller]
pub fn copy_async_wait<const PENDING: u32>() {
    emulator::wait(PENDING);
}

#[inline(always)]
#[track_caller]
pub unsafe fn prefetch(source: *const f32) {
    emulator::prefetch(source, Location::caller());
}

/// In a body compiled for processors with the instruction, the instruction; elsewhere a function with the same result.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

#[inline(always)]
pub fn pack_f16x2(low: f32, high: f32) -> u32 {
    let [low, high] = [low, high].map(|value| u32::from(half::f16::from_f32(value).to_bits()));
    low | high << 16
}

/// On the bits: magnitudes are ordered as integers, what is not a number comes after infinity.
pub fn larger_magnitudes_f16x2(a: u32, b: u32) -> u32 {
    const INFINITE: u32 = 0x7c00;
    let larger = |shift: u32| {
        let number = |pair: u32| Some(pair >> shift & 0x7fff).filter(|&magnitude| magnitude <= INFINITE);
        number(a).max(number(b)).unwrap_or(0x7fff)
    };
    larger(0) | larger(16) << 16
}

#[inline(always)]
pub fn unpack_f16x2(pair: u32) -> (f32, f32) {
    (half::f16::from_bits(pair as u16).to_f32(), half::f16::from_bits((pair >> 16) as u16).to_f32())
}

#[inline(always)]
pub fn to_f16(value: f32) -> u16 {
    half::f16::from_f32(value).to_bits()
}

#[inline(always)]
pub fn sqrt(x: f32) -> f32 {
    x.sqrt()
}

/// On the GPU a number of 32 bits.
pub type SharedAddress = *mut f32;

#[inline(always)]
pub fn shared_address(pointer: *mut f32) -> SharedAddress {
    pointer
}

#[inline(always)]
pub fn shared_offset(address: SharedAddress, floats: usize) -> SharedAddress {
    address.wrapping_add(floats)
}

#[inline(always)]
#[track_caller]
pub unsafe fn mma_16x8x16(c: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
    emulator::mma_16x8x16(c, a, b, Location::caller())
}

#[inline(always)]
#[track_caller]
pub unsafe fn load_matrix_x4(row: SharedAddress) -> [u32; 4] {
    emulator::load_matrix_x4(row, Location::caller())
}

#[inline(always)]
#[track_caller]
pub unsafe fn load_matrix_x4_transposed(row: SharedAddress) -> [u32; 4] {
    emulator::load_matrix_x4_transposed(row, Location::caller())
}

/// Where a matrix starts.
pub type MatrixDescriptor = *mut f32;

#[inline(always)]
pub fn matrix_descriptor(pointer: *mut f32) -> MatrixDescriptor {
    pointer
}

#[inline(always)]
pub fn matrix_offset(descriptor: MatrixDescriptor, floats: usize) -> MatrixDescriptor {
    descriptor.wrapping_add(floats)
}

#[track_caller]
pub unsafe fn warpgroup_multiply<const FROM_ZERO: bool, const TRANSPOSED: bool>(
    sums: [f32; 16],
    a: [u32; 4],
    b: MatrixDescriptor,
) -> [f32; 16] {
    emulator::warpgroup_multiply(if FROM_ZERO { [0.0; 16] } else { sums }, a, b, TRANSPOSED, Location::caller())
}

/// Products are done at once.
#[inline(always)]
pub fn warpgroup_fence() {}

#[inline(always)]
pub fn warpgroup_commit() {}

#[inline(always)]
pub fn warpgroup_wait<const PENDING: u32>() {}

#[inline(always)]
pub fn warpgroup_arrived(sums: [f32; 16]) -> [f32; 16] {
    sums
}

#[inline(always)]
pub fn fence_shared_for_warpgroups() {}
