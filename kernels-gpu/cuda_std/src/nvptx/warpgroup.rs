//! The words of warpgroups as PTX, on Hopper alone.
use core::arch::asm;

use super::shared_address;

/// Where a matrix lies, its rows' stride over eight of them, and that it is swizzled by 128 bytes.
pub type MatrixDescriptor = u64;

#[inline(always)]
pub fn matrix_descriptor(pointer: *mut f32) -> MatrixDescriptor {
    /// 16 bytes, which is not used; 1,024 bytes; swizzle 1.
    const SHAPE: u64 = 1 << 16 | (1024 / 16) << 32 | 1 << 62;
    SHAPE | u64::from(shared_address(pointer) >> 4)
}

#[inline(always)]
pub fn matrix_offset(descriptor: MatrixDescriptor, floats: usize) -> MatrixDescriptor {
    descriptor + floats as u64 / 4
}

#[inline(always)]
pub unsafe fn warpgroup_multiply<const FROM_ZERO: bool, const TRANSPOSED: bool>(
    mut sums: [f32; 16],
    a: [u32; 4],
    b: MatrixDescriptor,
) -> [f32; 16] {
    // SAFETY: `wgmma`; the caller has the whole warpgroup here.
    unsafe {
        asm!(
            "{{ .reg .pred p; setp.ne.b32 p, {keep}, 0; \
             wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 \
             {{{d0}, {d1}, {d2}, {d3}, {d4}, {d5}, {d6}, {d7}, {d8}, {d9}, {d10}, {d11}, {d12}, {d13}, {d14}, {d15}}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, p, 1, 1, {transposed}; }}",
            d0 = inout(reg32) sums[0],
            d1 = inout(reg32) sums[1],
            d2 = inout(reg32) sums[2],
            d3 = inout(reg32) sums[3],
            d4 = inout(reg32) sums[4],
            d5 = inout(reg32) sums[5],
            d6 = inout(reg32) sums[6],
            d7 = inout(reg32) sums[7],
            d8 = inout(reg32) sums[8],
            d9 = inout(reg32) sums[9],
            d10 = inout(reg32) sums[10],
            d11 = inout(reg32) sums[11],
            d12 = inout(reg32) sums[12],
            d13 = inout(reg32) sums[13],
            d14 = inout(reg32) sums[14],
            d15 = inout(reg32) sums[15],
            a0 = in(reg32) a[0],
            a1 = in(reg32) a[1],
            a2 = in(reg32) a[2],
            a3 = in(reg32) a[3],
            b = in(reg64) b,
            keep = const !FROM_ZERO as u32,
            transposed = const TRANSPOSED as u32,
            options(nostack),
        );
    }
    sums
}

#[inline(always)]
pub fn warpgroup_fence() {
    // SAFETY: orders registers.
    unsafe { asm!("wgmma.fence.sync.aligned;", options(nostack)) }
}

#[inline(always)]
pub fn warpgroup_commit() {
    // SAFETY: ends a group.
    unsafe { asm!("wgmma.commit_group.sync.aligned;", options(nostack)) }
}

#[inline(always)]
pub fn warpgroup_wait<const PENDING: u32>() {
    // SAFETY: waits.
    unsafe { asm!("wgmma.wait_group.sync.aligned {pending};", pending = const PENDING, options(nostack)) }
}

#[inline(always)]
pub fn warpgroup_arrived(mut sums: [f32; 16]) -> [f32; 16] {
    // SAFETY: no instruction.
    unsafe {
        asm!(
            "// {d0}, {d1}, {d2}, {d3}, {d4}, {d5}, {d6}, {d7}, {d8}, {d9}, {d10}, {d11}, {d12}, {d13}, {d14}, {d15}",
            d0 = inout(reg32) sums[0],
            d1 = inout(reg32) sums[1],
            d2 = inout(reg32) sums[2],
            d3 = inout(reg32) sums[3],
            d4 = inout(reg32) sums[4],
            d5 = inout(reg32) sums[5],
            d6 = inout(reg32) sums[6],
            d7 = inout(reg32) sums[7],
            d8 = inout(reg32) sums[8],
            d9 = inout(reg32) sums[9],
            d10 = inout(reg32) sums[10],
            d11 = inout(reg32) sums[11],
            d12 = inout(reg32) sums[12],
            d13 = inout(reg32) sums[13],
            d14 = inout(reg32) sums[14],
            d15 = inout(reg32) sums[15],
            options(nostack),
        );
    }
    sums
}

#[inline(always)]
pub fn fence_shared_for_warpgroups() {
    // SAFETY: orders memory.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack)) }
}
