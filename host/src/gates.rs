//! Gates on the host, from whatever the caller has to what the recurrence takes. In float64, rounded once.
#![forbid(unsafe_code)]
use crate::call::{Call, Decay, Gates, View};
use crate::error::{Error, Result};

/// Above this softplus(x) is x to the last bit of an f32, and e^x need not be taken.
const SOFTPLUS_LINEAR: f64 = 20.0;

impl Gates<'_> {
    /// Log of the forget gate, and write strength, of one value head at one token, which is `batch` sequences and `token` tokens
    /// from the views' first.
    pub(crate) fn at(&self, batch: usize, token: usize, head: usize) -> [f32; 2] {
        let scalar = |view: &View<'_>| {
            view.data.at(batch * view.batch_stride + token * view.strides.token + head * view.strides.head)
        };
        match self {
            Self::Log { g, beta } => [scalar(g), scalar(beta)],
            Self::Linear { decay, beta } => [f64::from(scalar(decay)).ln() as f32, scalar(beta)],
            Self::Raw { a, b, decay, dt_bias, allow_neg_eigval } => {
                let rate = match decay {
                    Decay::ALog(a_log) => -f64::from(a_log[head]).exp(),
                    Decay::NegExpALog(rate) => f64::from(rate[head]),
                };
                let g = rate * softplus(f64::from(scalar(a)) + f64::from(dt_bias[head]));
                let beta = 1.0 / (1.0 + (-f64::from(scalar(b))).exp());
                [g as f32, (if *allow_neg_eigval { 2.0 * beta } else { beta }) as f32]
            }
        }
    }
}

fn softplus(x: f64) -> f64 {
    if x > SOFTPLUS_LINEAR { x } else { x.exp().ln_1p() }
}

/// That every gate is one that its convention has.
///
/// # Errors
/// [`Error::Gate`] with the first that is not.
pub(crate) fn check(call: &Call<'_>) -> Result<()> {
    let (view, expected, legal): (_, _, fn(f32) -> bool) = match &call.gates {
        Gates::Log { g, .. } => (g, "the log of the forget gate, at most 0 (is this a linear gate?)", |g| g <= 0.0),
        Gates::Linear { decay, .. } => {
            (decay, "a linear forget gate, 0 to 1 (is this its log?)", |decay| (0.0..=1.0).contains(&decay))
        }
        Gates::Raw { .. } => return Ok(()),
    };
    let [batches, tokens] = call.sequences.axes();
    for batch in 0..batches {
        for token in 0..tokens {
            for head in 0..call.heads.num_v_heads {
                let value =
                    view.data.at(batch * view.batch_stride + token * view.strides.token + head * view.strides.head);
                if !legal(value) {
                    return Err(Error::Gate { token, head, value, expected });
                }
            }
        }
    }
    Ok(())
}
