//! `host plan`: which kernel a call would take on a card, and why, without the card.
#![forbid(unsafe_code)]
use std::fmt::Write;

use comfy_table::{Table, presets};
use serde::Serialize;

use super::{Verdict, print, print_json};
use crate::cli::PlanArguments;
use host::{Card, Heads, Launch, Policy, plan};

/// Cards by name: compute capability times ten, multiprocessors, opt-in shared memory of a block in bytes, as their
/// makers publish them.
const CARDS: [(&str, Card); 6] = [
    ("H200", Card::new(90, 132, 232_448)),
    ("A100", Card::new(80, 108, 166_912)),
    ("RTX 5090", Card::new(120, 170, 101_376)),
    ("RTX 4090", Card::new(89, 128, 101_376)),
    ("RTX 3090", Card::new(86, 82, 101_376)),
    ("T4", Card::new(75, 40, 65_536)),
];

#[derive(Debug, Serialize)]
struct Decision {
    card: String,
    tokens: usize,
    /// None where no kernel can run.
    kernel: Option<&'static str>,
    reason: String,
    scratch_bytes: usize,
    launches: usize,
}

/// Runs the command.
///
/// # Errors
/// A switch in the environment that has no meaning.
pub fn run(arguments: &PlanArguments) -> anyhow::Result<Verdict> {
    let policy = if arguments.from_env { Policy::from_env()? } else { Policy::default() };
    let heads = Heads::new(arguments.heads.keys, arguments.heads.values, arguments.map.into())?;
    let mut decisions = Vec::new();
    for (name, card) in cards(arguments) {
        for &tokens in &arguments.tokens {
            decisions.push(decision(&name, tokens, plan(&card, heads, tokens, &policy)));
        }
    }
    if arguments.json {
        print_json(&decisions)?
    } else {
        print(&text(&decisions))?
    }
    Ok(Verdict::Agreed)
}

/// The card that was described, or all that have a name.
fn cards(arguments: &PlanArguments) -> Vec<(String, Card)> {
    match arguments.card {
        Some(card) => vec![("card".to_owned(), card)],
        None => CARDS.map(|(name, card)| (name.to_owned(), card)).to_vec(),
    }
}

fn decision(card: &str, tokens: usize, planned: host::Result<Launch>) -> Decision {
    let card = card.to_owned();
    match planned {
        Ok(Launch { kernel, reason, scratch_bytes, launches, .. }) => {
            Decision { card, tokens, kernel: Some(kernel.name()), reason: reason.to_string(), scratch_bytes, launches }
        }
        Err(error) => Decision { card, tokens, kernel: None, reason: error.to_string(), scratch_bytes: 0, launches: 0 },
    }
}

fn text(decisions: &[Decision]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "card",
        "T",
        "kernel",
        "launches",
        "scratch",
        "why, or why not the first choice",
    ]);
    for decision in decisions {
        table.add_row([
            decision.card.clone(),
            decision.tokens.to_string(),
            decision.kernel.unwrap_or("none").to_owned(),
            decision.launches.to_string(),
            format!("{:.1} MB", decision.scratch_bytes as f64 / 1e6),
            decision.reason.clone(),
        ]);
    }
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(text, "{table}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::{HeadMap, Kernel};

    #[test]
    fn every_named_card_has_a_kernel_for_every_length() {
        let heads = Heads::new(16, 48, HeadMap::Grouped).unwrap();
        for (name, card) in CARDS {
            for tokens in [0, 1, 2048, 32_768] {
                assert!(plan(&card, heads, tokens, &Policy::default()).is_ok(), "{name} {tokens}");
            }
        }
        let t4 = plan(&CARDS[5].1, heads, 2048, &Policy::default()).unwrap();
        assert_eq!(t4.kernel, Kernel::RecurrentByColumn);
        assert!(t4.reason.to_string().contains("7.5"), "{}", t4.reason);
    }
}
