//! The layout of engines that keep a token's q, k and v in one row: the same numbers at other strides.
#![forbid(unsafe_code)]
use super::Inputs;
use crate::call::{Call, Gates, State, View, ViewMut};
use crate::heads::Heads;
use crate::layout::{StateLayout, Strides};

/// Inputs as an engine packs them.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Head counts, sizes and map.
    pub heads: Heads,
    /// T.
    pub tokens: usize,
    /// What the output is multiplied with.
    pub scale: f32,
    /// `[T, HK K + HK K + HV V]`: q, k and v of a token in one row.
    pub qkv: Vec<f32>,
    /// `[T, 2 HV]`: g of every head, then beta of every head.
    pub gates: Vec<f32>,
    /// Before the first token, `[K][HV][V]`: key rows outermost.
    pub state: Vec<f32>,
}

impl Inputs {
    /// The same numbers in an engine's layout.
    #[must_use]
    pub fn packed(&self) -> Packed {
        let heads = self.heads;
        let (keys, values) = (heads.num_k_heads * heads.head_k_dim, heads.num_v_heads * heads.head_v_dim);
        let mut packed = Packed {
            heads,
            tokens: self.tokens,
            scale: self.scale,
            qkv: Vec::with_capacity(self.tokens * (2 * keys + values)),
            gates: Vec::with_capacity(self.tokens * 2 * heads.num_v_heads),
            state: Vec::with_capacity(self.state.len()),
        };
        for token in 0..self.tokens {
            packed.qkv.extend_from_slice(&self.q[token * keys..][..keys]);
            packed.qkv.extend_from_slice(&self.k[token * keys..][..keys]);
            packed.qkv.extend_from_slice(&self.v[token * values..][..values]);
            packed.gates.extend_from_slice(&self.g[token * heads.num_v_heads..][..heads.num_v_heads]);
            packed.gates.extend_from_slice(&self.beta[token * heads.num_v_heads..][..heads.num_v_heads]);
        }
        for row in 0..heads.head_k_dim {
            for head in 0..heads.num_v_heads {
                let from = (head * heads.head_k_dim + row) * heads.head_v_dim;
                packed.state.extend_from_slice(&self.state[from..][..heads.head_v_dim]);
            }
        }
        packed
    }
}

impl Packed {
    /// The call over these inputs. `out` is `[T, HV, V]`; `state`, `[K][HV][V]`, is set to the state before the first
    /// token here.
    ///
    /// # Panics
    /// If `state` is not as long as [`Packed::state`].
    pub fn call<'a>(&'a self, out: &'a mut [f32], state: &'a mut [f32]) -> Call<'a> {
        state.copy_from_slice(&self.state);
        let heads = self.heads;
        let (keys, values) = (heads.num_k_heads * heads.head_k_dim, heads.num_v_heads * heads.head_v_dim);
        let row = 2 * keys + values;
        let key_strides = Strides { token: row, head: heads.head_k_dim };
        let value_strides = Strides { token: row, head: heads.head_v_dim };
        let gate_strides = Strides { token: 2 * heads.num_v_heads, head: 1 };
        // With no tokens the buffers are empty, and so are the views into them.
        let from = |data: &'a [f32], offset: usize| data.get(offset..).unwrap_or_default();
        Call::new(
            heads,
            self.tokens,
            View::new(&self.qkv, key_strides),
            View::new(from(&self.qkv, keys), key_strides),
            View::new(from(&self.qkv, 2 * keys), value_strides),
            Gates::Log {
                g: View::new(&self.gates, gate_strides),
                beta: View::new(from(&self.gates, heads.num_v_heads), gate_strides),
            },
            ViewMut::new(out, Strides::dense(heads.num_v_heads, heads.head_v_dim)),
        )
        .scale(self.scale)
        .state(State { data: state, layout: StateLayout::key_rows(&heads) })
    }

    /// A state `[K][HV][V]` as `[HV][K][V]`.
    #[must_use]
    pub fn key_major(&self, state: &[f32]) -> Vec<f32> {
        let heads = self.heads;
        let mut to = Vec::with_capacity(state.len());
        for head in 0..heads.num_v_heads {
            for row in 0..heads.head_k_dim {
                let from = (row * heads.num_v_heads + head) * heads.head_v_dim;
                to.extend_from_slice(&state[from..][..heads.head_v_dim]);
            }
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heads::HeadMap;
    use crate::inputs::Family;

    #[test]
    fn views_of_the_packed_buffers_hold_the_same_numbers() {
        let heads = Heads::new(2, 6, HeadMap::Tiled).unwrap();
        let inputs = Inputs::seeded(heads, 5, Family::Bench, 1);
        let packed = inputs.packed();
        assert_eq!(packed.key_major(&packed.state), inputs.state);
        let (mut out, mut state) = (vec![0.0; inputs.out_len(5)], vec![0.0; inputs.state_len()]);
        let call = packed.call(&mut out, &mut state);
        call.validate().unwrap();
        let Gates::Log { g, beta } = call.gates else { panic!("logs were given") };
        for (view, heads, dim, dense) in [
            (call.q, 2, 128, &inputs.q),
            (call.k, 2, 128, &inputs.k),
            (call.v, 6, 128, &inputs.v),
            (g, 6, 1, &inputs.g),
            (beta, 6, 1, &inputs.beta),
        ] {
            for (index, &value) in dense.iter().enumerate() {
                let (token, head, element) = (index / (heads * dim), index / dim % heads, index % dim);
                assert_eq!(view.data.at(token * view.strides.token + head * view.strides.head + element), value);
            }
        }
    }
}
