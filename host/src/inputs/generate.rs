//! How a family's tensors are drawn.
#![forbid(unsafe_code)]
use super::Inputs;
use super::families::{Family, Keys, Place, Values, silu};
use super::random::{Stream, Tensor, fill_tokens, write_normalised};
use crate::heads::Heads;

/// The inputs of a family.
pub(super) fn generate(heads: Heads, tokens: usize, family: Family, seed: u64) -> Inputs {
    let row = family.row();
    let mut inputs = Inputs::zeros(heads, tokens);
    let (key_dim, value_dim) = (heads.head_k_dim, heads.head_v_dim);

    let shared: Vec<Shared> = (0..heads.num_k_heads).map(|head| Shared::new(seed, head, key_dim)).collect();
    for (tensor, data) in [(Tensor::Q, &mut inputs.q), (Tensor::K, &mut inputs.k)] {
        fill_tokens(data, heads.num_k_heads * key_dim, |token, to| {
            fill_keys(row.keys, tensor, seed, &shared, token, to);
        });
    }

    let channels: Vec<f64> = (0..heads.num_v_heads)
        .flat_map(|head| Stream::new(seed, Tensor::Channels, head).normals(value_dim))
        .map(|size| (0.8 * size).exp())
        .collect();
    fill_tokens(&mut inputs.v, heads.num_v_heads * value_dim, |token, to| {
        let random = &mut Stream::new(seed, Tensor::V, token);
        let factor = 2f64.powi((row.exponent)(token));
        for (to, channel) in to.iter_mut().zip(&channels) {
            let value = match row.values {
                Values::Gaussian => random.normal(),
                Values::HeavyTailed => random.normal() * (1.5 * random.normal()).exp(),
                Values::Channels => silu(random.normal()) * channel,
            };
            *to = (value * factor) as f32;
        }
    });

    for (tensor, draw, data) in [(Tensor::Gate, row.gate, &mut inputs.g), (Tensor::Beta, row.beta, &mut inputs.beta)] {
        fill_tokens(data, heads.num_v_heads, |token, to| {
            let random = &mut Stream::new(seed, tensor, token);
            for (v_head, to) in to.iter_mut().enumerate() {
                *to = draw(&Place { token, v_head, k_head: heads.k_head(v_head) }, random) as f32;
            }
        });
    }

    fill_tokens(&mut inputs.state, key_dim * value_dim, |head, to| {
        let random = &mut Stream::new(seed, Tensor::State, head);
        to.fill_with(|| (row.state * random.normal()) as f32);
    });
    inputs
}

/// What all keys and queries of a head share.
struct Shared {
    centre: Vec<f64>,
    /// Rank 8, `[8][K]`.
    factors: Vec<f64>,
}

/// Rank of the keys' common part.
const RANK: usize = 8;

impl Shared {
    fn new(seed: u64, head: usize, dim: usize) -> Self {
        let random = &mut Stream::new(seed, Tensor::Centre, head);
        Self { centre: random.normals(dim), factors: random.normals(RANK * dim) }
    }

    /// Low rank, noise and centre of one token, before smoothing.
    fn features(&self, random: &mut Stream) -> Vec<f64> {
        let dim = self.centre.len();
        let weights = random.normals(RANK);
        let mut features: Vec<f64> = self.centre.iter().map(|centre| 0.7 * centre + 0.8 * random.normal()).collect();
        for (weight, factor) in weights.iter().zip(self.factors.chunks_exact(dim)) {
            for (feature, factor) in features.iter_mut().zip(factor) {
                *feature += 0.5 * weight * factor;
            }
        }
        features
    }
}

/// The keys or queries of one token, all heads.
fn fill_keys(keys: Keys, tensor: Tensor, seed: u64, shared: &[Shared], token: usize, to: &mut [f32]) {
    let random = &mut Stream::new(seed, tensor, token);
    let dim = to.len() / shared.len();
    // A convolution over this token and the two before it; before the first token there is nothing.
    let mut taps: Vec<(f64, Stream)> = [0.5, 0.3, 0.2]
        .into_iter()
        .enumerate()
        .filter_map(|(back, weight)| Some((weight, Stream::new(seed, tensor, token.checked_sub(back)?))))
        .collect();
    for (head, (shared, to)) in shared.iter().zip(to.chunks_exact_mut(dim)).enumerate() {
        let is_k = tensor == Tensor::K;
        let row = match keys {
            Keys::Gaussian => random.normals(dim),
            Keys::Unnormalised => {
                to.fill_with(|| random.normal() as f32);
                continue;
            }
            Keys::Centred { k, q } => {
                let (own, centred) = if is_k { k } else { q };
                shared.centre.iter().map(|centre| own * random.normal() + centred * centre).collect()
            }
            Keys::Repeated if !is_k => random.normals(dim),
            Keys::Repeated if head.is_multiple_of(2) => shared.centre.clone(),
            Keys::Repeated => {
                let length = shared.centre.iter().map(|centre| centre * centre).sum::<f64>().sqrt();
                shared.centre.iter().map(|centre| centre / length + 0.05 * random.normal()).collect()
            }
            Keys::Features => {
                let mut row = vec![0.0; dim];
                for (weight, stream) in &mut taps {
                    for (row, feature) in row.iter_mut().zip(shared.features(stream)) {
                        *row += *weight * feature;
                    }
                }
                row.into_iter().map(silu).collect()
            }
        };
        write_normalised(&row, to);
    }
}
