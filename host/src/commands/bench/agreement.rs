//! Parity before the clock: whether a path's result is right at the length that is about to be measured.
#![forbid(unsafe_code)]
use serde::Serialize;

use super::super::report::Against;
use super::super::runs::Output;
use host::compare::{Bar, Comparison, Tensor, compare};
use host::inputs::Inputs;
use host::reference::Prefixes;

/// Above this a path is compared with the sequential one, and that one's first outputs with float64: the reference takes
/// seconds for every thousand tokens.
pub const REFERENCE_TOKENS: usize = 8192;

/// How a path's result compares.
#[derive(Clone, Debug, Serialize)]
pub struct Agreement {
    pub against: Against,
    /// How many of the tokens were compared.
    pub tokens: usize,
    pub out: Comparison,
    /// Where only the first tokens were compared there is none to compare the state with.
    pub state: Option<Comparison>,
    pub bar: Bar,
    pub agreed: bool,
}

impl Agreement {
    /// The larger of the two errors.
    pub fn relative(&self) -> f64 {
        let state = self.state.map_or(0.0, |state| state.relative_by_head);
        self.out.relative_by_head.max(state)
    }

    /// `output` beside float64, as far as that goes.
    ///
    /// # Panics
    /// If `reference` has neither this length nor [`REFERENCE_TOKENS`].
    pub fn with_float64(inputs: &Inputs, reference: &Prefixes, tokens: usize, output: &Output, bar: Bar) -> Self {
        let compared = if reference.at(tokens).is_some() { tokens } else { REFERENCE_TOKENS };
        let (out, state) = reference.at(compared).expect("a reference for every length");
        let state = (compared == tokens).then(|| compare(Tensor::State, &inputs.heads, state, &output.state));
        // Outputs of the first tokens do not depend on those after them.
        let out = compare(Tensor::Out, &inputs.heads, out, &output.out[..out.len()]);
        Self::new(Against::Float64, compared, out, state, bar, output)
    }

    /// `output` beside that of another path.
    pub fn with_path(inputs: &Inputs, tokens: usize, other: &Output, output: &Output, bar: Bar) -> Self {
        let out = compare(Tensor::Out, &inputs.heads, &other.out, &output.out);
        let state = compare(Tensor::State, &inputs.heads, &other.state, &output.state);
        Self::new(Against::Path(other.path), tokens, out, Some(state), bar, output)
    }

    fn new(
        against: Against,
        tokens: usize,
        out: Comparison,
        state: Option<Comparison>,
        bar: Bar,
        output: &Output,
    ) -> Self {
        // Two paths that both give NaN agree with each other, and where only the first tokens are compared the others
        // may not have been written.
        let finite = output.out.iter().chain(&output.state).all(|value| value.is_finite());
        let agreed = finite && out.meets(&bar) && state.is_none_or(|state| state.meets(&bar));
        Self { against, tokens, out, state, bar, agreed }
    }
}
