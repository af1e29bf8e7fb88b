//! A piece of a sequence as dense f32 rows: what the sums take, from whatever types, gates and norm the caller has.
#![forbid(unsafe_code)]
use super::part::{Floats, Inputs};
use crate::call::{Gates, QkNorm, View};
use crate::heads::{HEAD_DIM, Heads};
use crate::layout::Strides;
use core::ops::Range;

/// The inputs of a call.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub heads: Heads,
    pub q: View<'a>,
    pub k: View<'a>,
    pub v: View<'a>,
    pub gates: Gates<'a>,
    pub norm: QkNorm,
    pub scale: f32,
}

/// Dense rows, kept from piece to piece.
#[derive(Default)]
pub(super) struct Buffers {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    g: Vec<f32>,
    beta: Vec<f32>,
}

impl<'a> Source<'a> {
    /// The caller's rows as they are, where nothing has to be done to them, for `tokens` of the sequence that starts at
    /// `start` (on the batch axis, on the token axis).
    pub fn as_they_are(&self, start: [usize; 2], tokens: Range<usize>) -> Option<Inputs<'a>> {
        let Gates::Log { g, beta } = self.gates else { return None };
        if self.norm != QkNorm::None {
            return None;
        }
        let floats = |view: View<'a>| {
            let first = start[0] * view.batch_stride + (start[1] + tokens.start) * view.strides.token;
            Some(Floats { data: view.data.f32()?.get(first..).unwrap_or_default(), strides: view.strides })
        };
        Some(Inputs {
            tokens: tokens.len(),
            q: floats(self.q)?,
            k: floats(self.k)?,
            v: floats(self.v)?,
            g: floats(g)?,
            beta: floats(beta)?,
            scale: self.scale,
        })
    }

    /// The same rows converted, normalised and with their gates worked out, in `buffers`.
    pub fn converted<'b>(&self, start: [usize; 2], tokens: Range<usize>, buffers: &'b mut Buffers) -> Inputs<'b> {
        let Heads { num_k_heads, num_v_heads, .. } = self.heads;
        let Buffers { q, k, v, g, beta } = buffers;
        let first = [start[0], start[1] + tokens.start];
        for (view, to, heads) in [(&self.q, &mut *q, num_k_heads), (&self.k, k, num_k_heads), (&self.v, v, num_v_heads)]
        {
            read(view, first, tokens.len(), heads, to);
        }
        if let QkNorm::L2 { eps } = self.norm {
            q.chunks_exact_mut(HEAD_DIM).chain(k.chunks_exact_mut(HEAD_DIM)).for_each(|row| normalise(row, eps));
        }
        g.clear();
        beta.clear();
        for token in 0..tokens.len() {
            for head in 0..num_v_heads {
                let [log, strength] = self.gates.at(first[0], first[1] + token, head);
                g.push(log);
                beta.push(strength);
            }
        }
        let dense = |data: &'b [f32], heads, dim| Floats { data, strides: Strides::dense(heads, dim) };
        Inputs {
            tokens: tokens.len(),
            q: dense(q, num_k_heads, HEAD_DIM),
            k: dense(k, num_k_heads, HEAD_DIM),
            v: dense(v, num_v_heads, HEAD_DIM),
            g: dense(g, num_v_heads, 1),
            beta: dense(beta, num_v_heads, 1),
            scale: self.scale,
        }
    }
}

/// Dense `[token, head, HEAD_DIM]` of `tokens` tokens from `first` on.
fn read(view: &View<'_>, first: [usize; 2], tokens: usize, heads: usize, to: &mut Vec<f32>) {
    to.resize(tokens * heads * HEAD_DIM, 0.0);
    let strides = view.strides;
    for (index, row) in to.chunks_exact_mut(HEAD_DIM).enumerate() {
        let (token, head) = (first[1] + index / heads, index % heads);
        view.data.read(first[0] * view.batch_stride + token * strides.token + head * strides.head, row);
    }
}

/// x / sqrt(sum x^2 + eps). The sum is taken in float64, so that no order of it matters.
fn normalise(row: &mut [f32], eps: f32) {
    let squares: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let root = (squares + f64::from(eps)).sqrt();
    row.iter_mut().for_each(|x| *x = (f64::from(*x) / root) as f32);
}
