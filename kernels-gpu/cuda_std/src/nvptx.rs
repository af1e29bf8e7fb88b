//! Each word as PTX. Convergent instructions (barriers, shuffles) are LLVM intrinsics: the compiler may duplicate inline
//! assembly into branches, an intrinsic says that it may not.
use core::arch::asm;

use crate::memory::Quad;

#[path = "nvptx/warpgroup.rs"]
mod warpgroup;

pub use warpgroup::*;

unsafe extern "C" {
    #[link_name = "llvm.nvvm.read.ptx.sreg.tid.x"]
    fn tid_x() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.ctaid.x"]
    fn ctaid_x() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.ctaid.y"]
    fn ctaid_y() -> u32;
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.all"]
    fn barrier_sync(barrier: u32);
    #[link_name = "llvm.nvvm.barrier.cta.sync.count"]
    fn barrier_sync_count(barrier: u32, threads: u32);
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: u32);
    #[link_name = "llvm.nvvm.shfl.sync.bfly.f32"]
    fn shuffle_xor(mask: u32, value: f32, lane_mask: u32, clamp: u32) -> f32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.f32"]
    fn shuffle_idx(mask: u32, value: f32, source: u32, clamp: u32) -> f32;
    #[link_name = "llvm.nvvm.shfl.sync.up.f32"]
    fn shuffle_up(mask: u32, value: f32, delta: u32, clamp: u32) -> f32;
    #[link_name = "llvm.nvvm.redux.sync.umax"]
    fn redux_max(value: u32, mask: u32) -> u32;
    /// The dynamic shared memory as a generic pointer, from address_spaces.ll: Rust cannot name an address space, and
    /// after linking LLVM infers it, so that plain reads and writes become `ld.shared` and `st.shared`.
    fn __gpu_dynamic_shared() -> *mut u8;
    /// The 32-bit shared address of a generic pointer into shared memory, from address_spaces.ll.
    fn __gpu_shared_address(pointer: *mut f32) -> u32;
}

/// The last argument of the shuffles: segments of the whole warp.
const FULL_WARP: u32 = 0x1f;
const ALL_LANES: u32 = u32::MAX;

#[inline(always)]
pub fn thread_idx_x() -> u32 {
    // SAFETY: `%tid.x` is always readable.
    unsafe { tid_x() }
}

/// Tells the compiler a fact that holds by the launch.
#[inline(always)]
pub unsafe fn assume(fact: bool) {
    // SAFETY: the caller's contract.
    unsafe { core::hint::assert_unchecked(fact) }
}

/// Traps where a bound is violated: a panic with a message would drag formatting code and a stack into every kernel.
#[inline(always)]
pub fn require(condition: bool) {
    if !condition {
        core::intrinsics::abort()
    }
}

#[inline(always)]
pub fn block_idx_x() -> u32 {
    // SAFETY: `%ctaid.x` is always readable.
    unsafe { ctaid_x() }
}

#[inline(always)]
pub fn block_idx_y() -> u32 {
    // SAFETY: `%ctaid.y` is always readable.
    unsafe { ctaid_y() }
}

#[inline(always)]
pub fn global_nanoseconds() -> u64 {
    let now;
    // SAFETY: `%globaltimer` is always readable. Not `pure`: it is another number each time.
    unsafe { asm!("mov.u64 {now}, %globaltimer;", now = out(reg64) now, options(nostack, nomem)) };
    now
}

#[inline(always)]
pub fn clock_cycles() -> u64 {
    let now;
    // SAFETY: `%clock64` is always readable. Not `pure`: it is another number each time.
    unsafe { asm!("mov.u64 {now}, %clock64;", now = out(reg64) now, options(nostack, nomem)) };
    now
}

#[inline(always)]
pub fn sleep<const NANOSECONDS: u32>() {
    // SAFETY: `nanosleep` has no precondition.
    unsafe { asm!("nanosleep.u32 {time};", time = const NANOSECONDS, options(nostack, nomem)) }
}

#[inline(always)]
pub unsafe fn sync_threads() {
    // SAFETY: `bar.sync 0`; the caller has all threads here.
    unsafe { barrier_sync(0) }
}

#[inline(always)]
pub unsafe fn sync_roles(threads: u32) {
    // SAFETY: `barrier.sync 1, threads`; the caller has so many here.
    unsafe { barrier_sync_count(1, threads) }
}

#[inline(always)]
pub fn let_next_launch_start() {
    // SAFETY: a signal.
    unsafe { asm!("griddepcontrol.launch_dependents;", options(nostack)) }
}

#[inline(always)]
pub fn wait_for_last_launch() {
    // SAFETY: waits; memory may be read only after.
    unsafe { asm!("griddepcontrol.wait;", options(nostack)) }
}

#[inline(always)]
pub unsafe fn sync_warp() {
    // SAFETY: `bar.warp.sync`; the caller has all lanes here.
    unsafe { bar_warp_sync(ALL_LANES) }
}

#[inline(always)]
pub unsafe fn warp_shuffle_xor(value: f32, lane_mask: u32) -> f32 {
    // SAFETY: `shfl.sync.bfly`; the caller has all lanes here.
    unsafe { shuffle_xor(ALL_LANES, value, lane_mask, FULL_WARP) }
}

#[inline(always)]
pub unsafe fn warp_shuffle_idx(value: f32, source: u32) -> f32 {
    // SAFETY: `shfl.sync.idx`; the caller has all lanes here.
    unsafe { shuffle_idx(ALL_LANES, value, source, FULL_WARP) }
}

#[inline(always)]
pub unsafe fn warp_shuffle_up(value: f32, delta: u32) -> f32 {
    // SAFETY: `shfl.sync.up` (clamp 0: lanes below `delta` keep their value); the caller has all lanes here.
    unsafe { shuffle_up(ALL_LANES, value, delta, 0) }
}

#[inline(always)]
pub unsafe fn warp_max(value: u32) -> u32 {
    // SAFETY: `redux.sync.max.u32`; the caller has all lanes here.
    unsafe { redux_max(value, ALL_LANES) }
}

#[inline(always)]
pub fn dynamic_shared_mem(_bytes: usize) -> *mut u8 {
    // SAFETY: returns the address of the module's shared array.
    unsafe { __gpu_dynamic_shared() }
}

/// A quad as a vector register: an aligned struct would do, if LLVM did not make two 8-byte moves of a plain copy.
#[repr(simd)]
#[derive(Clone, Copy)]
struct VectorQuad(Quad);

#[inline(always)]
unsafe fn read_vector(pointer: *const f32) -> Quad {
    // SAFETY: readable and 16-byte aligned, by the caller; a vector of four floats has a quad's bytes.
    unsafe { core::mem::transmute::<VectorQuad, Quad>(pointer.cast::<VectorQuad>().read()) }
}

#[inline(always)]
unsafe fn write_vector(pointer: *mut f32, value: Quad) {
    // SAFETY: writable and 16-byte aligned, by the caller; a vector of four floats has a quad's bytes.
    unsafe { pointer.cast::<VectorQuad>().write(core::mem::transmute::<Quad, VectorQuad>(value)) }
}

#[inline(always)]
pub unsafe fn shared_read(pointer: *const f32) -> f32 {
    // SAFETY: in the block's shared memory, by the caller.
    unsafe { pointer.read() }
}

#[inline(always)]
pub unsafe fn shared_write(pointer: *mut f32, value: f32) {
    // SAFETY: in the block's shared memory, by the caller.
    unsafe { pointer.write(value) }
}

#[inline(always)]
pub unsafe fn shared_read_quad(pointer: *const f32) -> Quad {
    // SAFETY: in the block's shared memory and 16-byte aligned, by the caller.
    unsafe { read_vector(pointer) }
}

#[inline(always)]
pub unsafe fn shared_write_quad(pointer: *mut f32, value: Quad) {
    // SAFETY: in the block's shared memory and 16-byte aligned, by the caller.
    unsafe { write_vector(pointer, value) }
}

/// Two values as a vector register.
#[repr(simd)]
#[derive(Clone, Copy)]
struct VectorPair([f32; 2]);

#[inline(always)]
pub unsafe fn shared_read_pair(pointer: *const f32) -> [f32; 2] {
    // SAFETY: in the block's shared memory and 8-byte aligned, by the caller; a vector of two floats has a pair's bytes.
    unsafe { core::mem::transmute::<VectorPair, [f32; 2]>(pointer.cast::<VectorPair>().read()) }
}

#[inline(always)]
pub unsafe fn shared_write_pair(pointer: *mut f32, value: [f32; 2]) {
    // SAFETY: in the block's shared memory and 8-byte aligned, by the caller; a vector of two floats has a pair's bytes.
    unsafe { pointer.cast::<VectorPair>().write(core::mem::transmute::<[f32; 2], VectorPair>(value)) }
}

#[inline(always)]
pub unsafe fn shared_write_if(condition: bool, pointer: *mut f32, value: f32) {
    // SAFETY: `st.shared` under a predicate; the caller's contract where it holds.
    unsafe {
        asm!(
            "{{ .reg .pred p; setp.ne.u32 p, {condition}, 0; @p st.shared.f32 [{pointer}], {value}; }}",
            condition = in(reg32) u32::from(condition),
            pointer = in(reg32) __gpu_shared_address(pointer),
            value = in(reg32) value,
            options(nostack),
        );
    }
}

#[inline(always)]
pub unsafe fn global_read<T: Copy>(pointer: *const T) -> T {
    // SAFETY: the caller's contract.
    unsafe { pointer.read() }
}

#[inline(always)]
pub unsafe fn global_read_volatile(pointer: *const u32) -> u32 {
    // SAFETY: the caller's contract.
    unsafe { pointer.read_volatile() }
}

#[inline(always)]
pub unsafe fn global_read_quad(pointer: *const f32) -> Quad {
    // SAFETY: the caller's contract, alignment included.
    unsafe { read_vector(pointer) }
}

#[inline(always)]
pub unsafe fn global_write<T: Copy>(pointer: *mut T, value: T) {
    // SAFETY: the caller's contract.
    unsafe { pointer.write(value) }
}

#[inline(always)]
pub unsafe fn global_write_quad(pointer: *mut f32, value: Quad) {
    // SAFETY: the caller's contract, alignment included.
    unsafe { write_vector(pointer, value) }
}

#[inline(always)]
pub unsafe fn global_write_if(condition: bool, pointer: *mut f32, value: f32) {
    // SAFETY: `st.global` under a predicate; the caller's contract where it holds.
    unsafe {
        asm!(
            "{{ .reg .pred p; setp.ne.u32 p, {condition}, 0; @p st.global.f32 [{pointer}], {value}; }}",
            condition = in(reg32) u32::from(condition),
            pointer = in(reg64) pointer,
            value = in(reg32) value,
            options(nostack),
        );
    }
}

#[inline(always)]
pub unsafe fn copy_async_16(destination: *mut f32, source: *const f32) {
    // SAFETY: `cp.async.cg` of 16 bytes; in bounds and aligned by the caller. No memory clobber is omitted: the compiler
    // must keep it ordered with the barriers.
    unsafe {
        asm!(
            "cp.async.cg.shared.global [{destination}], [{source}], 16;",
            destination = in(reg32) __gpu_shared_address(destination),
            source = in(reg64) source,
            options(nostack),
        );
    }
}

#[inline(always)]
pub unsafe fn copy_async_4(destination: *mut f32, source: *const f32) {
    // SAFETY: `cp.async.ca` of 4 bytes; in bounds by the caller.
    unsafe {
        asm!(
            "cp.async.ca.shared.global [{destination}], [{source}], 4;",
            destination = in(reg32) __gpu_shared_address(destination),
            source = in(reg64) source,
            options(nostack),
        );
    }
}

#[inline(always)]
pub fn copy_async_commit() {
    // SAFETY: `cp.async.commit_group` has no precondition.
    unsafe { asm!("cp.async.commit_group;", options(nostack)) }
}

#[inline(always)]
pub fn copy_async_wait<const PENDING: u32>() {
    // SAFETY: `cp.async.wait_group` has no precondition.
    unsafe { asm!("cp.async.wait_group {pending};", pending = const PENDING, options(nostack)) }
}

#[inline(always)]
pub unsafe fn prefetch(source: *const f32) {
    // SAFETY: `prefetch.global.L2` never faults.
    unsafe { asm!("prefetch.global.L2 [{source}];", source = in(reg64) source, options(nostack, readonly)) }
}

#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    core::intrinsics::fmaf32(a, b, c)
}

#[inline(always)]
pub fn pack_f16x2(low: f32, high: f32) -> u32 {
    let pair;
    // SAFETY: `cvt.rn.f16x2.f32` has no precondition; its first source goes into the high half.
    unsafe {
        asm!(
            "cvt.rn.f16x2.f32 {pair}, {high}, {low};",
            pair = lateout(reg32) pair,
            high = in(reg32) high,
            low = in(reg32) low,
            options(pure, nomem, nostack),
        );
    }
    pair
}

#[inline(always)]
pub fn larger_magnitudes_f16x2(a: u32, b: u32) -> u32 {
    let larger;
    // SAFETY: computes a value.
    unsafe {
        asm!(
            "{{ .reg .b32 x, y; abs.f16x2 x, {a}; abs.f16x2 y, {b}; max.f16x2 {larger}, x, y; }}",
            larger = out(reg32) larger,
            a = in(reg32) a,
            b = in(reg32) b,
            options(pure, nomem, nostack),
        );
    }
    larger
}

#[inline(always)]
pub fn unpack_f16x2(pair: u32) -> (f32, f32) {
    let (low, high);
    // SAFETY: `cvt.f32.f16` has no precondition.
    unsafe {
        asm!(
            "{{ .reg .b16 l, h; mov.b32 {{l, h}}, {pair}; cvt.f32.f16 {low}, l; cvt.f32.f16 {high}, h; }}",
            low = out(reg32) low,
            high = out(reg32) high,
            pair = in(reg32) pair,
            options(pure, nomem, nostack),
        );
    }
    (low, high)
}

#[inline(always)]
pub fn to_f16(value: f32) -> u16 {
    let half;
    // SAFETY: `cvt.rn.f16.f32` has no precondition.
    unsafe {
        asm!(
            "cvt.rn.f16.f32 {half}, {value};",
            half = lateout(reg16) half,
            value = in(reg32) value,
            options(pure, nomem, nostack),
        );
    }
    half
}

#[inline(always)]
pub fn sqrt(x: f32) -> f32 {
    core::intrinsics::sqrtf32(x)
}

/// A 32-bit address in shared memory.
pub type SharedAddress = u32;

#[inline(always)]
pub fn shared_address(pointer: *mut f32) -> SharedAddress {
    // SAFETY: computes an address.
    unsafe { __gpu_shared_address(pointer) }
}

#[inline(always)]
pub fn shared_offset(address: SharedAddress, floats: usize) -> SharedAddress {
    address.wrapping_add(4 * floats as u32)
}

// The words of the tensor cores are assembly: their intrinsics take vectors of 16-bit floats and pointers to shared memory,
// which Rust cannot name. Kernels use them in straight code alone, and a test counts them in the PTX.

#[inline(always)]
pub unsafe fn mma_16x8x16(c: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = c;
    // SAFETY: `mma.sync`; the caller has all lanes here.
    unsafe {
        asm!(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 \
             {{{c0}, {c1}, {c2}, {c3}}}, {{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}}}, {{{c0}, {c1}, {c2}, {c3}}};",
            c0 = inout(reg32) c0,
            c1 = inout(reg32) c1,
            c2 = inout(reg32) c2,
            c3 = inout(reg32) c3,
            a0 = in(reg32) a[0],
            a1 = in(reg32) a[1],
            a2 = in(reg32) a[2],
            a3 = in(reg32) a[3],
            b0 = in(reg32) b[0],
            b1 = in(reg32) b[1],
            options(nomem, nostack),
        );
    }
    [c0, c1, c2, c3]
}

#[inline(always)]
pub unsafe fn load_matrix_x4(row: SharedAddress) -> [u32; 4] {
    let (d0, d1, d2, d3);
    // SAFETY: `ldmatrix`; in bounds, aligned and with all lanes here by the caller.
    unsafe {
        asm!(
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{d0}, {d1}, {d2}, {d3}}}, [{row}];",
            d0 = out(reg32) d0,
            d1 = out(reg32) d1,
            d2 = out(reg32) d2,
            d3 = out(reg32) d3,
            row = in(reg32) row,
            options(readonly, nostack),
        );
    }
    [d0, d1, d2, d3]
}

#[inline(always)]
pub unsafe fn load_matrix_x4_transposed(row: SharedAddress) -> [u32; 4] {
    let (d0, d1, d2, d3);
    // SAFETY: `ldmatrix`; in bounds, aligned and with all lanes here by the caller.
    unsafe {
        asm!(
            "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{d0}, {d1}, {d2}, {d3}}}, [{row}];",
            d0 = out(reg32) d0,
            d1 = out(reg32) d1,
            d2 = out(reg32) d2,
            d3 = out(reg32) d3,
            row = in(reg32) row,
            options(readonly, nostack),
        );
    }
    [d0, d1, d2, d3]
}
