//! Reading Rust source as text: what is code and what is not.

/// The source without its comments and without the contents of its string literals; line ends stay.
pub fn code_only(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(character) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = string_length(rest) {
            code.push_str("\"\"");
            length
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\\"'") {
            // The character literals that would look like the start of a string.
            rest[1..].find('\'').map_or(rest.len(), |end| end + 2)
        } else {
            code.push(character);
            rest = &rest[character.len_utf8()..];
            continue;
        };
        code.extend(rest[..length].chars().filter(|&character| character == '\n'));
        rest = &rest[length..];
    }
    code
}

/// The length of the string literal that `text` starts with, raw or not.
fn string_length(text: &str) -> Option<usize> {
    if let Some(body) = text.strip_prefix('"') {
        let mut escaped = false;
        let end = body.find(|character| {
            let ends = character == '"' && !escaped;
            escaped = character == '\\' && !escaped;
            ends
        });
        return Some(end.map_or(text.len(), |end| end + 2));
    }
    let hashes = text.strip_prefix('r')?;
    let count = hashes.len() - hashes.trim_start_matches('#').len();
    let body = hashes[count..].strip_prefix('"')?;
    let terminator = format!("\"{}", "#".repeat(count));
    let opening = 2 + count;
    Some(body.find(&terminator).map_or(text.len(), |end| opening + end + terminator.len()))
}

/// How often `word` stands in `code` as a whole identifier.
pub fn count_word(code: &str, word: &str) -> usize {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    code.split(|character| !is_part(character)).filter(|&part| part == word).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_no_code() {
        let source = "a(); // unsafe\n/* unsafe\n */ b(\"unsafe \\\" // \", r#\"un\"safe\"#, '\"');\nunsafe {}";
        let code = code_only(source);
        assert_eq!(code, "a(); \n\n b(\"\", \"\", );\nunsafe {}");
        assert_eq!(count_word(&code, "unsafe"), 1);
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(count_word("unsafe_code unsafe{} not_unsafe", "unsafe"), 1);
    }
}
