//! What a token brings to a thread: read before it is needed, as it lies in memory, and widened when its turn comes.
//!
//! All but the query is read a token ahead, the first token before the state. The query is needed last, so that most of its
//! way is hidden in its own token; beside the state there are no registers for another.
use super::super::elements::{Elements, Raw, RawQuad, widen_quads};
use super::super::recurrence::{QUADS, ROW_GROUPS, Rows};
use super::super::slices::{Role, normalised};
use super::sequence::Sequence;
use super::{Args, NORM_L2};

/// A token but for its query, as it lies in memory.
#[derive(Clone, Copy, Default)]
pub struct Token {
    pub k: [RawQuad; QUADS],
    pub v: [RawQuad; 1],
    pub g: Raw,
    pub beta: Raw,
}

/// A thread's inputs from the next token on.
pub struct Inputs {
    q: Elements,
    k: Elements,
    v: Elements,
    g: Elements,
    beta: Elements,
}

impl Inputs {
    /// Those of a sequence's first token.
    #[inline(always)]
    pub fn first(args: &Args, sequence: &Sequence, key_head: usize, role: Role) -> Self {
        let value_head = role.value_head as usize;
        let (batch, token) = (sequence.batch, sequence.first_token);
        let at = |memory, element, strides: [usize; 3], head: usize, dim: usize| {
            let [batch_stride, token_stride, head_stride] = strides;
            Elements::new(memory, element)
                .offset(batch * batch_stride + token * token_stride + head * head_stride + dim)
        };
        let (row, column) = (role.row(0), role.column);
        Self {
            q: at(args.q, args.element, [args.q_batch_stride, args.q_token_stride, args.q_head_stride], key_head, row),
            k: at(args.k, args.element, [args.k_batch_stride, args.k_token_stride, args.k_head_stride], key_head, row),
            v: at(
                args.v,
                args.element,
                [args.v_batch_stride, args.v_token_stride, args.v_head_stride],
                value_head,
                column,
            ),
            g: at(
                args.g,
                args.g_element,
                [args.g_batch_stride, args.g_token_stride, args.g_head_stride],
                value_head,
                0,
            ),
            beta: at(
                args.beta,
                args.beta_element,
                [args.beta_batch_stride, args.beta_token_stride, args.beta_head_stride],
                value_head,
                0,
            ),
        }
    }

    /// Reads the query of the token whose turn it is, and moves on to that of the next.
    ///
    /// # Safety
    /// There is such a token.
    #[inline(always)]
    pub unsafe fn read_query(&mut self, args: &Args) -> [RawQuad; QUADS] {
        // SAFETY: bounds: rows below 128 by `Role`, the token exists. Owner: read only.
        let q = unsafe { self.q.quads(4 * ROW_GROUPS) };
        self.q = self.q.offset(args.q_token_stride);
        q
    }

    /// Reads the rest of the token and moves on to the next.
    ///
    /// # Safety
    /// There is such a token.
    #[inline(always)]
    pub unsafe fn read(&mut self, args: &Args) -> Token {
        // SAFETY: bounds: rows and columns below 128 by `Role`, the token exists. Owner: read only.
        let token = unsafe {
            Token { k: self.k.quads(4 * ROW_GROUPS), v: self.v.quads(0), g: self.g.first(), beta: self.beta.first() }
        };
        self.k = self.k.offset(args.k_token_stride);
        self.v = self.v.offset(args.v_token_stride);
        self.g = self.g.offset(args.g_token_stride);
        self.beta = self.beta.offset(args.beta_token_stride);
        token
    }
}

/// A key or query, normalised where that is asked for.
///
/// # Safety
/// All lanes of the warp make this call together.
#[inline(always)]
pub unsafe fn key_or_query(args: &Args, raw: &[RawQuad; QUADS]) -> Rows {
    let mut x = widen_quads(args.element, raw);
    if args.norm == NORM_L2 {
        // SAFETY: all lanes are here; `norm` is the launch's.
        x = unsafe { normalised(&x, args.norm_eps) };
    }
    x
}
