//! A chunk, on a tile of the state that stays in the first-level cache.
#![forbid(unsafe_code)]
#![expect(clippy::needless_range_loop, reason = "rows and vectors of a block have numbers, the same in every operand")]
use super::CHUNK;
use super::head::Head;
use super::keys::Keys;
use super::products::{Block, product, vectors};
use crate::cpu::split::Columns;
use crate::cpu::sums::vectors_mut;
use crate::cpu::tile::{COLUMNS, Tile};
use crate::heads::HEAD_DIM;
use pulp::{Simd, WithSimd};

/// Carries `tile` through a chunk.
///
/// Outputs go straight to the caller's rows: those lie pages apart, and stores that are spread over the chunk's products wait
/// for nothing.
pub(super) struct Advance<'a, 'out> {
    pub tile: &'a mut Tile,
    pub keys: &'a Keys,
    pub head: &'a Head,
    pub out: &'a mut Columns<'out>,
    /// Of `out`, the chunk's first.
    pub token: usize,
    /// Tokens of the chunk.
    pub count: usize,
    /// Of `out`, the tile's first.
    pub column: usize,
}

impl WithSimd for Advance<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // Sums enough to hide a multiply-add's latency and to use each load several times, and few enough for the
        // registers (a sum each, N of columns, one for a token): 32 of them with 16 and with 4 lanes, 16 with 8.
        match S::F32_LANES {
            16 => self.blocks::<S, 8, 2>(simd),
            8 => self.blocks::<S, 4, 2>(simd),
            _ => self.blocks::<S, 4, 4>(simd),
        }
    }
}

impl Advance<'_, '_> {
    #[inline(always)]
    fn blocks<S: Simd, const M: usize, const N: usize>(&mut self, simd: S) {
        for block in 0..COLUMNS / (N * S::F32_LANES) {
            self.block::<S, M, N>(simd, block * N);
        }
    }

    /// The `N` vectors of columns from `first` on, `M` tokens at a time.
    #[inline(always)]
    fn block<S: Simd, const M: usize, const N: usize>(&mut self, simd: S, first: usize) {
        let mut d = [[simd.splat_f32s(0.0); N]; CHUNK];
        for start in (0..self.count).step_by(M) {
            self.solve::<S, M, N>(simd, first, start, &mut d);
            self.emit::<S, M, N>(simd, first, start, &d);
        }
        self.update::<S, M, N>(simd, first, &mut d);
    }

    /// The corrections of the `M` tokens from `start` on, by forward substitution.
    #[inline(always)]
    fn solve<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        first: usize,
        start: usize,
        d: &mut [[S::f32s; N]; CHUNK],
    ) {
        let Self { tile, keys, head, out, column, .. } = self;
        let value_first = (out.first + column) / S::F32_LANES + first;
        let mut sums = product::<S, M, N, _>(simd, &keys.k.as_chunks().0[start / M], &tile.0, first);
        for m in 0..M {
            let beta = simd.splat_f32s(head.beta[start + m]);
            let weight = simd.splat_f32s(head.key_weight[start + m]);
            let v = vectors::<S, N>(&head.values[start + m].0, value_first);
            for n in 0..N {
                sums[m][n] = simd.mul_add_e_f32s(weight, sums[m][n], simd.mul_f32s(beta, v[n]));
            }
        }
        let weights: &[[f32; CHUNK]; M] = &head.a.as_chunks().0[start / M];
        add_earlier(simd, &mut sums, weights, d, start);
        for m in 0..M {
            for later in m + 1..M {
                let weight = simd.splat_f32s(weights[later][start + m]);
                for n in 0..N {
                    sums[later][n] = simd.mul_add_e_f32s(weight, sums[m][n], sums[later][n]);
                }
            }
        }
        *d.as_chunks_mut().0.get_mut(start / M).expect("a block of tokens") = sums;
    }

    /// The outputs of the `M` tokens from `start` on.
    #[inline(always)]
    fn emit<S: Simd, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        first: usize,
        start: usize,
        d: &[[S::f32s; N]; CHUNK],
    ) {
        let Self { tile, keys, head, out, token, count, column } = self;
        let mut sums = product::<S, M, N, _>(simd, &keys.q.as_chunks().0[start / M], &tile.0, first);
        for m in 0..M {
            let weight = simd.splat_f32s(head.query_weight[start + m]);
            for n in 0..N {
                sums[m][n] = simd.mul_f32s(weight, sums[m][n]);
            }
        }
        let weights: &[[f32; CHUNK]; M] = &head.p.as_chunks().0[start / M];
        add_earlier(simd, &mut sums, weights, d, start);
        let own: &Block<S::f32s, M, N> = &d.as_chunks().0[start / M];
        for m in 0..M {
            for later in m..M {
                let weight = simd.splat_f32s(weights[later][start + m]);
                for n in 0..N {
                    sums[later][n] = simd.mul_add_e_f32s(weight, own[m][n], sums[later][n]);
                }
            }
        }
        for m in 0..M.min(*count - start) {
            let mut row = out.rows.row_mut(*token + start + m);
            let columns = row.as_slice_mut().expect("contiguous columns");
            *vectors_mut::<S, N>(columns, *column / S::F32_LANES + first) = sums[m];
        }
    }

    /// The state after the chunk, `M` of its rows at a time.
    #[inline(always)]
    fn update<S: Simd, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        first: usize,
        d: &mut [[S::f32s; N]; CHUNK],
    ) {
        let Self { tile, keys, head, count, .. } = self;
        for (d, &weight) in d.iter_mut().zip(&head.end_weight) {
            let weight = simd.splat_f32s(weight);
            for n in 0..N {
                d[n] = simd.mul_f32s(weight, d[n]);
            }
        }
        let decay = simd.splat_f32s(head.decay);
        for block in 0..HEAD_DIM / M {
            let rows: &mut [[f32; COLUMNS]; M] = &mut tile.0.as_chunks_mut().0[block];
            let mut sums = [[decay; N]; M];
            for m in 0..M {
                let s = vectors_mut::<S, N>(&mut rows[m], first);
                for n in 0..N {
                    sums[m][n] = simd.mul_f32s(decay, s[n]);
                }
            }
            for (k, d) in keys.k.iter().zip(&*d).take(*count) {
                let k: &[f32; M] = &k.0.as_chunks().0[block];
                for m in 0..M {
                    let k = simd.splat_f32s(k[m]);
                    for n in 0..N {
                        sums[m][n] = simd.mul_add_e_f32s(k, d[n], sums[m][n]);
                    }
                }
            }
            for m in 0..M {
                *vectors_mut::<S, N>(&mut rows[m], first) = sums[m];
            }
        }
    }
}

/// Adds the weighted corrections of the tokens before `start`.
#[inline(always)]
fn add_earlier<S: Simd, const M: usize, const N: usize>(
    simd: S,
    sums: &mut Block<S::f32s, M, N>,
    weights: &[[f32; CHUNK]; M],
    d: &[[S::f32s; N]; CHUNK],
    start: usize,
) {
    for (earlier, d) in d.iter().enumerate().take(start) {
        for m in 0..M {
            let weight = simd.splat_f32s(weights[m][earlier]);
            for n in 0..N {
                sums[m][n] = simd.mul_add_e_f32s(weight, d[n], sums[m][n]);
            }
        }
    }
}
