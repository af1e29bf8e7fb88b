//! What a key head has of a chunk: queries, keys, and their products with one another.
#![forbid(unsafe_code)]
use super::products::product;
use super::{CHUNK, Pairs};
use crate::cpu::part::Inputs;
use crate::cpu::segment::{Row, row};
use crate::cpu::sums::vectors_mut;
use crate::heads::HEAD_DIM;
use pulp::{Simd, WithSimd};

/// Queries and keys of a chunk.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Keys {
    pub q: [Row; CHUNK],
    pub k: [Row; CHUNK],
    /// `[element][token]`.
    transposed: [[f32; CHUNK]; HEAD_DIM],
    /// k.k.
    pub kk: Pairs,
    /// q.k.
    pub qk: Pairs,
}

impl Keys {
    /// Overwritten before it is read.
    pub const BLANK: Self = Self {
        q: [const { Row::BLANK }; CHUNK],
        k: [const { Row::BLANK }; CHUNK],
        transposed: [[0.0; CHUNK]; HEAD_DIM],
        kk: [[0.0; CHUNK]; CHUNK],
        qk: [[0.0; CHUNK]; CHUNK],
    };
}

/// Copies `count` tokens of key head `head` in and multiplies them.
pub(super) struct Read<'a> {
    pub keys: &'a mut Keys,
    pub inputs: &'a Inputs<'a>,
    pub first: usize,
    pub count: usize,
    pub head: usize,
}

impl WithSimd for Read<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { keys, inputs, first, count, head } = self;
        for token in 0..count {
            keys.q[token].0.copy_from_slice(row(&inputs.q, first + token, head));
            keys.k[token].0.copy_from_slice(row(&inputs.k, first + token, head));
        }
        keys.transpose();
        match S::F32_LANES {
            16 => keys.multiply::<S, 16, 1>(simd, count),
            8 => keys.multiply::<S, 8, 1>(simd, count),
            _ => keys.multiply::<S, 4, 4>(simd, count),
        }
    }
}

impl Keys {
    /// Four by four, so that a line of the cache is written a quarter as often.
    #[inline(always)]
    fn transpose(&mut self) {
        for (block, [k0, k1, k2, k3]) in self.k.as_chunks().0.iter().enumerate() {
            let rows = [k0, k1, k2, k3].map(|row| row.0.as_chunks::<4>().0);
            for (group, to) in self.transposed.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let square: [[f32; 4]; 4] = rows.map(|row| row[group]);
                for (element, to) in to.iter_mut().enumerate() {
                    to.as_chunks_mut().0[block] = square.map(|row| row[element]);
                }
            }
        }
    }

    #[inline(always)]
    fn multiply<S: Simd, const M: usize, const N: usize>(&mut self, simd: S, count: usize) {
        let Self { q, k, transposed, kk, qk } = self;
        for (rows, to) in [(&*k, kk), (&*q, qk)] {
            let (rows, to) = (rows.as_chunks::<M>().0, to.as_chunks_mut::<M>().0);
            for (block, (rows, to)) in rows.iter().zip(to).take(count.div_ceil(M)).enumerate() {
                // Earlier tokens only: those up to the block's last.
                let columns = (block + 1) * M;
                for first in (0..columns.div_ceil(S::F32_LANES)).step_by(N) {
                    let sums = product::<S, M, N, _>(simd, rows, transposed, first);
                    for m in 0..M {
                        *vectors_mut::<S, N>(&mut to[m], first) = sums[m];
                    }
                }
            }
        }
    }
}
