//! The families of inputs, a row of a table each.
#![forbid(unsafe_code)]
use std::fmt;

use super::random::Stream;
use crate::compare::{Bar, bars};

/// Where gates, write strengths, keys and values come from. Unless a line says otherwise, keys and queries are
/// Gaussian rows of length 1, values N(0, 1), beta uniform in \[0, 1), and the state before the first token 0.1 N(0, 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Family {
    /// What speeds are measured on: g = -0.001 - 0.2 u u', uniform u
    #[default]
    Bench,
    /// g = -0.1 |N(0, 1)|, state N(0, 1)
    Base,
    /// Strong decay, by head in turn: -e^u with u in -7..1.6, -2, -20, -100, -e^4.9 softplus(N(-4, 4^2))
    Strong,
    /// g = -0.01 u, and every 65 tokens one gate of -20, -88, -104, -200, -1e3, -1e4, -1e6, -3e38 or -inf
    Reset,
    /// Repeated keys: all equal with g = 0 and beta 0.5, 1, 1.9 or 2, or nearly equal with g = -1e-3 and beta 0.95
    Repeat,
    /// Nearly parallel keys, g = -1e-4, beta 0.95 to 1, from a zero state
    Hard,
    /// Long memory: g = -0.002 u, correlated keys, beta = sigmoid(1 + 1.5 N(0, 1))
    Slow,
    /// As after a short convolution and SiLU: correlated keys, g = -softplus(N(-3, 1)), values of unlike channels
    Real,
    /// beta exactly 0, 1, 2 or 1.9 by head, g = 0 or as in base
    Beta,
    /// Values with heavy tails: N(0, 1) e^(1.5 N(0, 1))
    Outlier,
    /// Gates above 0 among those below: g = N(-0.1, 0.5^2), whose drift keeps the state in range at any length
    Positive,
    /// As bench, values and state times 2^-40
    Tiny,
    /// As bench, values and state times 2^-10
    Small,
    /// As bench, values and state times 2^10
    Large,
    /// As bench, values and state times 2^40
    Huge,
    /// As bench, values and state times 2^-110: what is left of a product's last bits is subnormal
    Vanishing,
    /// As bench, but of every 82 tokens the values of the last 41 are 2^20 times as large
    Jump,
    /// A state of 1e30 N(0, 1) that the first token forgets (gate -inf), and so does token 45 of every third head; else
    /// g = -0.01 u
    Forgotten,
    /// A state of 1e30 N(0, 1) that token 9, 16, 23 or 30 forgets, by head in turn; else g = -0.01 u
    Forgetting,
    /// Keys and queries N(0, 1) of length 8 to 14, g = 0: grows like 1e5 in 16 tokens, so only for short tests
    #[cfg_attr(feature = "cli", value(skip))]
    Unnormalised,
}

impl fmt::Display for Family {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names are single words, as on the command line.
        formatter.pad(&format!("{self:?}").to_lowercase())
    }
}

/// How keys and queries are drawn.
#[derive(Clone, Copy)]
pub(super) enum Keys {
    /// Rows of N(0, 1), scaled to length 1.
    Gaussian,
    /// Rows of N(0, 1) as they are.
    Unnormalised,
    /// `own` N(0, 1) + `shared` times a centre N(0, 1) of the head, scaled to length 1; (own, shared).
    Centred { k: (f64, f64), q: (f64, f64) },
    /// All equal in heads of even number, nearly equal in the others; queries Gaussian.
    Repeated,
    /// Low rank plus noise plus a centre, smoothed over three tokens, SiLU, scaled to length 1.
    Features,
}

/// How values are drawn.
#[derive(Clone, Copy)]
pub(super) enum Values {
    /// N(0, 1).
    Gaussian,
    /// N(0, 1) e^(1.5 N(0, 1)).
    HeavyTailed,
    /// SiLU of N(0, 1), times e^(0.8 N(0, 1)) of the channel.
    Channels,
}

/// Where a gate or a write strength stands.
pub(super) struct Place {
    pub token: usize,
    pub v_head: usize,
    pub k_head: usize,
}

/// Draws a gate or a write strength.
pub(super) type Scalar = fn(&Place, &mut Stream) -> f64;

/// A family's row.
pub(super) struct Row {
    pub keys: Keys,
    pub values: Values,
    /// By which power of two the values of a token are multiplied.
    pub exponent: fn(usize) -> i32,
    /// Times N(0, 1).
    pub state: f64,
    pub gate: Scalar,
    pub beta: Scalar,
}

impl Family {
    /// The bar of a sequential path on these inputs, up to 8,192 tokens.
    #[must_use]
    pub fn bar(self) -> Bar {
        match self {
            Self::Repeat | Self::Hard => bars::UNDAMPED,
            _ => bars::SEQUENTIAL,
        }
    }

    /// The bars of output and state for a path that takes many tokens at a time, against float64 up to 8,192 tokens.
    #[must_use]
    pub fn chunked_bars(self) -> (Bar, Bar) {
        match self {
            Self::Repeat => (bars::CHUNKED_REPEATED, bars::CHUNKED_REPEATED),
            Self::Beta => (bars::CHUNKED_UNDAMPED, bars::CHUNKED_UNDAMPED),
            Self::Hard => (bars::CHUNKED_OUT, bars::CHUNKED_UNDAMPED),
            // Its errors are those of the recurrence itself: it multiplies them at every token.
            Self::Unnormalised => (self.bar(), self.bar()),
            _ => (bars::CHUNKED_OUT, bars::CHUNKED_STATE),
        }
    }

    pub(super) fn row(self) -> Row {
        let plain = Row {
            keys: Keys::Gaussian,
            values: Values::Gaussian,
            exponent: |_| 0,
            state: 0.1,
            gate: |_, random| -0.001 - 0.2 * random.uniform() * random.uniform(),
            beta: |_, random| random.uniform(),
        };
        match self {
            Self::Bench => plain,
            Self::Base => Row { state: 1.0, gate: base_gate, ..plain },
            Self::Strong => Row { gate: strong_gate, ..plain },
            Self::Reset => Row { state: 1.0, gate: reset_gate, ..plain },
            Self::Repeat => Row {
                keys: Keys::Repeated,
                state: 1.0,
                gate: |place, _| if place.k_head.is_multiple_of(2) { 0.0 } else { -1e-3 },
                beta: |place, _| {
                    if place.k_head.is_multiple_of(2) { [0.5, 1.0, 1.9, 2.0][place.v_head % 4] } else { 0.95 }
                },
                ..plain
            },
            Self::Hard => Row {
                keys: Keys::Centred { k: (0.15, 1.0), q: (0.3, 1.0) },
                state: 0.0,
                gate: |_, _| -1e-4,
                beta: |_, random| 1.0 - 0.05 * random.uniform(),
                ..plain
            },
            Self::Slow => Row {
                keys: Keys::Centred { k: (0.6, 1.0), q: (0.6, 0.5) },
                gate: |_, random| -0.002 * random.uniform(),
                beta: |_, random| sigmoid(1.0 + 1.5 * random.normal()),
                ..plain
            },
            Self::Real => Row {
                keys: Keys::Features,
                values: Values::Channels,
                gate: |_, random| -softplus(random.normal() - 3.0),
                beta: |_, random| sigmoid(1.5 * random.normal()),
                ..plain
            },
            Self::Beta => Row {
                state: 1.0,
                gate: |place, random| {
                    let gate = base_gate(place, random);
                    if (place.v_head / 4).is_multiple_of(2) { 0.0 } else { gate }
                },
                beta: |place, _| [0.0, 1.0, 2.0, 1.9][place.v_head % 4],
                ..plain
            },
            Self::Outlier => Row {
                values: Values::HeavyTailed,
                gate: |_, random| -0.001 - 0.05 * random.uniform() * random.uniform(),
                ..plain
            },
            Self::Positive => Row { state: 1.0, gate: |_, random| -0.1 + 0.5 * random.normal(), ..plain },
            Self::Tiny => Row { exponent: |_| -40, state: 0.1 * 2f64.powi(-40), ..plain },
            Self::Small => Row { exponent: |_| -10, state: 0.1 * 2f64.powi(-10), ..plain },
            Self::Large => Row { exponent: |_| 10, state: 0.1 * 2f64.powi(10), ..plain },
            Self::Huge => Row { exponent: |_| 40, state: 0.1 * 2f64.powi(40), ..plain },
            Self::Vanishing => Row { exponent: |_| -110, state: 0.1 * 2f64.powi(-110), ..plain },
            Self::Jump => Row { exponent: |token| if (token / 41).is_multiple_of(2) { 0 } else { 20 }, ..plain },
            Self::Forgotten => Row {
                state: 1e30,
                gate: |place, random| {
                    let again = place.token == 45 && place.v_head % 3 == 1;
                    weak_gate_unless(place.token == 0 || again, random)
                },
                ..plain
            },
            Self::Forgetting => Row {
                state: 1e30,
                gate: |place, random| weak_gate_unless(place.token == 9 + 7 * (place.v_head % 4), random),
                ..plain
            },
            Self::Unnormalised => Row {
                keys: Keys::Unnormalised,
                state: 1.0,
                gate: |_, _| 0.0,
                beta: |_, random| sigmoid(random.normal()),
                ..plain
            },
        }
    }
}

fn base_gate(_: &Place, random: &mut Stream) -> f64 {
    -0.1 * random.normal().abs()
}

/// Sums over 64 tokens from about -60 to about -5,000. A_log = 4.9 occurs in published checkpoints.
fn strong_gate(place: &Place, random: &mut Stream) -> f64 {
    let uniform = random.uniform();
    let softplus = softplus(-4.0 + 4.0 * random.normal());
    [-(-7.0 + 8.6 * uniform).exp(), -2.0, -20.0, -100.0, -4.9_f64.exp() * softplus][place.v_head % 5]
}

/// e^-87 is about the last float32 that is normal, e^-104 rounds to 0.
fn reset_gate(place: &Place, random: &mut Stream) -> f64 {
    const RESETS: [f64; 9] = [-20.0, -88.0, -104.0, -200.0, -1e3, -1e4, -1e6, -3e38, f64::NEG_INFINITY];
    let gate = -0.01 * random.uniform();
    let (period, token) = (place.token / 65, place.token % 65);
    if token == 5 { RESETS[(place.v_head + period) % RESETS.len()] } else { gate }
}

/// -inf where the state is forgotten.
fn weak_gate_unless(forgets: bool, random: &mut Stream) -> f64 {
    let gate = -0.01 * random.uniform();
    if forgets { f64::NEG_INFINITY } else { gate }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

pub(super) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}
