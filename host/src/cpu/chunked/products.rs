//! Rows of tokens times a matrix of `HEAD_DIM` rows.
#![forbid(unsafe_code)]
use crate::cpu::segment::Row;
use crate::heads::HEAD_DIM;
use pulp::Simd;

/// `M` tokens by `N` vectors of columns: sums that stay in registers.
pub(super) type Block<V, const M: usize, const N: usize> = [[V; N]; M];

/// The products of `M` tokens' rows with the `N` vectors of columns from `first` on.
#[inline(always)]
pub(super) fn product<S: Simd, const M: usize, const N: usize, const WIDTH: usize>(
    simd: S,
    rows: &[Row; M],
    matrix: &[[f32; WIDTH]; HEAD_DIM],
    first: usize,
) -> Block<S::f32s, M, N> {
    let mut sums = [[simd.splat_f32s(0.0); N]; M];
    for (index, columns) in matrix.iter().enumerate() {
        let columns = vectors::<S, N>(columns, first);
        for m in 0..M {
            let element = simd.splat_f32s(rows[m].0[index]);
            for n in 0..N {
                sums[m][n] = simd.mul_add_e_f32s(columns[n], element, sums[m][n]);
            }
        }
    }
    sums
}

/// `N` vectors of columns, from vector `first` on.
#[inline(always)]
pub(super) fn vectors<S: Simd, const N: usize>(columns: &[f32], first: usize) -> &[S::f32s; N] {
    let (vectors, _) = S::as_simd_f32s(columns);
    vectors[first..].first_chunk().expect("a block of columns")
}
