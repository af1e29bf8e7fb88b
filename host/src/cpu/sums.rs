//! The sums over key rows, `N` vectors of columns at a time.
//!
//! Each column's sums run over the rows in order, whoever calls, so a column's bits do not depend on how the work is cut.
//! Fused multiply-add where the processor has it; elsewhere a multiply and an add.
#![forbid(unsafe_code)]
use super::segment::{KeyInputs, Row, ValueInputs};
use pulp::Simd;

/// S^T k.
#[inline(always)]
pub(super) fn project<'a, S: Simd, const N: usize>(
    simd: S,
    rows: impl Iterator<Item = &'a mut [f32]>,
    first: usize,
    k: &Row,
) -> [S::f32s; N] {
    let mut sums = [simd.splat_f32s(0.0); N];
    for (row, &k) in rows.zip(&k.0) {
        let s = vectors_mut::<S, N>(row, first);
        let k = simd.splat_f32s(k);
        for n in 0..N {
            sums[n] = simd.mul_add_e_f32s(s[n], k, sums[n]);
        }
    }
    sums
}

/// beta (v - e^g `projected`).
#[inline(always)]
pub(super) fn correction<S: Simd, const N: usize>(
    simd: S,
    values: &ValueInputs,
    v: &[S::f32s; N],
    projected: &[S::f32s; N],
) -> [S::f32s; N] {
    let decay = simd.splat_f32s(values.decay);
    let beta = simd.splat_f32s(values.beta);
    let mut d = *v;
    for n in 0..N {
        d[n] = simd.mul_f32s(beta, simd.negate_mul_add_e_f32s(decay, projected[n], v[n]));
    }
    d
}

/// What a token does to some columns of the state, and its query.
pub(super) struct Update<'a, V, const N: usize> {
    /// e^g.
    pub decay: V,
    /// The correction.
    pub d: [V; N],
    pub key: &'a KeyInputs,
}

impl<V: Copy, const N: usize> Update<'_, V, N> {
    /// S = decay S + k d^T; returns S^T q, and S^T k of `KEYS` further keys, of the new S.
    #[inline(always)]
    pub fn sweep<'a, S: Simd<f32s = V>, const KEYS: usize>(
        &self,
        simd: S,
        rows: impl Iterator<Item = &'a mut [f32]>,
        first: usize,
        further: [&Row; KEYS],
    ) -> ([V; N], [[V; N]; KEYS]) {
        let mut o = [simd.splat_f32s(0.0); N];
        let mut projected = [o; KEYS];
        for (index, ((row, &k), &q)) in rows.zip(&self.key.k.0).zip(&self.key.q.0).enumerate() {
            let s = vectors_mut::<S, N>(row, first);
            let (k, q) = (simd.splat_f32s(k), simd.splat_f32s(q));
            for n in 0..N {
                let updated = simd.mul_add_e_f32s(k, self.d[n], simd.mul_f32s(self.decay, s[n]));
                s[n] = updated;
                o[n] = simd.mul_add_e_f32s(updated, q, o[n]);
                for (key, sums) in further.iter().zip(&mut projected) {
                    sums[n] = simd.mul_add_e_f32s(updated, simd.splat_f32s(key.0[index]), sums[n]);
                }
            }
        }
        (o, projected)
    }
}

/// `N` vectors of columns, from vector `first` on.
#[inline(always)]
pub(super) fn vectors_mut<S: Simd, const N: usize>(columns: &mut [f32], first: usize) -> &mut [S::f32s; N] {
    let (vectors, _) = S::as_mut_simd_f32s(columns);
    vectors[first..].first_chunk_mut().expect("a block of columns")
}
