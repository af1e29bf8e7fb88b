//! The words of the tensor cores, a warp at a time.
use super::{ORDERS, one_block, run_block, tile};
use crate::emulator::{Fault, Memory, run};
use crate::float::{pack_f16x2, split_f16x2, unpack_f16x2};
use crate::memory::GlobalMut;
use crate::shared::Tile;
use crate::tensor::{MatrixRow, load_matrix_x4, load_matrix_x4_transposed, mma_16x8x16};
use crate::thread::thread_idx_x;
use crate::warp::{sync_warp, warp_max};

/// Small integers: every sum is exact.
fn a(row: usize, k: usize) -> f32 {
    ((row * 7 + k * 3) % 11) as f32 - 5.0
}

fn b(k: usize, column: usize) -> f32 {
    ((k * 5 + column * 2) % 13) as f32 - 6.0
}

#[test]
fn a_product_of_loaded_matrices_is_the_product() {
    /// a and b stored by rows of 16 halves, b as [column][k] and, for the transposed load, as [k][column].
    unsafe fn product(out: [GlobalMut<f32>; 2]) {
        let lane = thread_idx_x() as usize;
        let shared = tile::<512>();
        if lane == 0 {
            for row in 0..16 {
                for k in 0..8 {
                    let (first, second) = (2 * k, 2 * k + 1);
                    let place = |matrix: usize| matrix * 128 + row * 8 + k;
                    // SAFETY: bounds: three matrices of 128. Owner: lane 0 alone writes. Barrier: `sync_warp` below.
                    unsafe {
                        Tile::put(shared, place(0), f32::from_bits(pack_f16x2(a(row, first), a(row, second))));
                        Tile::put(shared, place(1), f32::from_bits(pack_f16x2(b(first, row), b(second, row))));
                        Tile::put(shared, place(2), f32::from_bits(pack_f16x2(b(row, first), b(row, second))));
                    }
                }
            }
        }
        // SAFETY: all lanes are here.
        unsafe { sync_warp() };
        let (row, matrix) = (lane % 8, lane / 8);
        // SAFETY: bounds: rows of the three matrices; a place a lane and index. All lanes are here.
        unsafe {
            // a: rows 0-7 and 8-15 of k 0-7, then of k 8-15.
            let a = load_matrix_x4(MatrixRow::of(shared, (row + 8 * (matrix % 2)) * 8 + 4 * (matrix / 2)));
            // b: columns 0-7 and k 0-7, 8-15, then columns 8-15.
            let b = load_matrix_x4(MatrixRow::of(shared, 128 + (row + 8 * (matrix / 2)) * 8 + 4 * (matrix % 2)));
            let transposed = MatrixRow::of(shared, 256 + (row + 8 * (matrix % 2)) * 8);
            let other_b = load_matrix_x4_transposed(transposed.offset(4 * (matrix / 2)));
            for (out, b) in out.into_iter().zip([b, other_b]) {
                for half in 0..2 {
                    let c = mma_16x8x16([0.5; 4], a, [b[2 * half], b[2 * half + 1]]);
                    for (index, c) in c.into_iter().enumerate() {
                        let place = (lane / 4 + 8 * (index / 2)) * 16 + 8 * half + 2 * (lane % 4) + index % 2;
                        out.put(place, c);
                    }
                }
            }
        }
    }
    for order in ORDERS {
        let (mut plain, mut transposed) = (vec![f32::NAN; 256], vec![f32::NAN; 256]);
        let mut memory = Memory::new();
        let args = [memory.read_write(&mut plain), memory.read_write(&mut transposed)];
        let launch = super::Launch { order, ..one_block(32, 2048) };
        // SAFETY: the kernel touches memory through the words alone.
        unsafe { run(&launch, &memory, product, args) }.unwrap();
        for row in 0..16 {
            for column in 0..16 {
                let expected = 0.5 + (0..16).map(|k| a(row, k) * b(k, column)).sum::<f32>();
                assert_eq!(plain[row * 16 + column], expected, "{row} {column}");
                assert_eq!(transposed[row * 16 + column], expected, "transposed {row} {column}");
            }
        }
    }
}

#[test]
fn a_matrix_off_16_bytes_is_a_fault() {
    unsafe fn load(_: ()) {
        let row = MatrixRow::of(tile::<512>(), 2);
        // SAFETY: all lanes are here; the address is the fault that is expected.
        let _ = unsafe { load_matrix_x4(row) };
    }
    assert!(matches!(run_block(32, 2048, load, ()), Err(Fault::Misaligned { alignment: 16, .. })));
}

#[test]
fn the_largest_of_a_warp() {
    unsafe fn largest(_: ()) {
        let lane = thread_idx_x();
        // SAFETY: all lanes are here.
        let (largest, largest_bits) = unsafe { (warp_max(lane * 5 % 32), warp_max(0x7fc0_0000 + lane)) };
        assert_eq!((largest, largest_bits), (31, 0x7fc0_001f));
    }
    run_block(32, 0, largest, ()).unwrap();
}

#[test]
fn halves_round_to_nearest_even_and_pairs_keep_22_bits() {
    assert_eq!(pack_f16x2(1.0, -2.0), 0xc000_3c00);
    assert_eq!(unpack_f16x2(0xc000_3c00), (1.0, -2.0));
    // Ties, the largest number, overflow, subnormal numbers and half of the least.
    for (value, bits) in [
        (1.0 + 2f32.powi(-11), 0x3c00),
        (1.0 + 3.0 * 2f32.powi(-11), 0x3c02),
        (65_504.0, 0x7bff),
        (65_519.9, 0x7bff),
        (65_520.0, 0x7c00),
        (2f32.powi(-24), 0x0001),
        (2f32.powi(-25), 0x0000),
        (3.0 * 2f32.powi(-25), 0x0002),
    ] {
        assert_eq!(pack_f16x2(value, 0.0), bits, "{value:e}");
    }
    for value in [0.1f32, -0.3, 7.7, 1234.567, -1.0e-3] {
        let (first, second) = split_f16x2(value, -value);
        let sum = |part: fn((f32, f32)) -> f32| part(unpack_f16x2(first)) + part(unpack_f16x2(second));
        let tolerance = (value.abs() * 2f32.powi(-22)).max(2f32.powi(-25));
        assert!((sum(|pair| pair.0) - value).abs() <= tolerance && sum(|pair| pair.1) == -sum(|pair| pair.0));
    }
}
