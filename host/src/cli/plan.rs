//! The arguments of `host plan`.
#![forbid(unsafe_code)]
use clap::Args;

use super::{HeadCounts, MapArgument, parse_heads, parse_tokens};
use host::Card;

#[derive(Debug, Args)]
pub struct PlanArguments {
    /// A card as CAPABILITY/MULTIPROCESSORS/SHARED_BYTES, such as 89/128/101376; by default cards that have a name
    #[arg(long, value_name = "CC/SMS/BYTES", value_parser = parse_card)]
    pub card: Option<Card>,
    /// Key and value heads
    #[arg(long, value_name = "KEY/VALUE", default_value = "16/48", value_parser = parse_heads)]
    pub heads: HeadCounts,
    /// Which key head a value head reads
    #[arg(long, value_enum, default_value_t = MapArgument::Grouped)]
    pub map: MapArgument,
    /// Prompt lengths, separated by commas
    #[arg(
        long,
        value_name = "T,..",
        value_delimiter = ',',
        default_value = "32,128,2048,32768",
        value_parser = parse_tokens
    )]
    pub tokens: Vec<usize>,
    /// Decide by the engine's switches in the environment (STRATA_GDN_CHUNKED, STRATA_GDN_KEYHEAD, STRATA_EMULATE_CC)
    /// instead of the default policy
    #[arg(long)]
    pub from_env: bool,
    /// The decisions in JSON on standard output
    #[arg(long)]
    pub json: bool,
}

fn parse_card(text: &str) -> Result<Card, String> {
    let form = || format!("expected CAPABILITY/MULTIPROCESSORS/SHARED_BYTES such as 89/128/101376, got {text:?}");
    let numbers: Vec<u32> = text.split('/').map(str::parse).collect::<Result<_, _>>().map_err(|_| form())?;
    let [capability, multiprocessors, shared_bytes_optin] = numbers[..] else {
        return Err(form());
    };
    if !(10..1000).contains(&capability) || multiprocessors == 0 {
        return Err(format!("expected a capability times ten from 10 to 999 and multiprocessors, got {text:?}"));
    }
    Ok(Card::new(capability, multiprocessors, shared_bytes_optin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_three_numbers() {
        let card = Card::new(89, 128, 101_376);
        assert_eq!(parse_card("89/128/101376"), Ok(card));
        for bad in ["", "89", "89/128", "89/128/x", "89/128/1/2", "-1/2/3"] {
            assert!(parse_card(bad).unwrap_err().contains("101376"), "{bad}");
        }
        for bad in ["0/0/0", "75/0/0", "4294967295/1/1"] {
            assert!(parse_card(bad).unwrap_err().contains("capability"), "{bad}");
        }
    }
}
