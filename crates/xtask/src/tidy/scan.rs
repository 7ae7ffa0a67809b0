//! Blanks comments and strings out of Rust text, so that rules see code alone. No full lexer: only what can hide code.

/// The text with every comment, string and character literal turned into spaces; lines stay where they are.
pub(super) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = hidden_end(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// Where the comment or literal that starts at `at` ends; `at` itself where none starts.
fn hidden_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => line_end(chars, at),
        '/' if next == Some('*') => block_comment_end(chars, at),
        '"' => string_end(chars, at),
        'r' if !continues_a_word(chars, at) => raw_string_end(chars, at).unwrap_or(at),
        '\'' => char_end(chars, at).unwrap_or(at),
        _ => at,
    }
}

fn line_end(chars: &[char], at: usize) -> usize {
    (at..chars.len()).find(|&i| chars[i] == '\n').unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut i = at;
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                i += 1;
                continue;
            }
        }
        i += 2;
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], at: usize) -> usize {
    let mut i = at + 1;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// `None` where the `r` starts no raw string, as in `r#type`.
fn raw_string_end(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
    let open = at + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let closes =
        |i: usize| chars[i] == '"' && chars[i + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes;
    Some((open + 1..chars.len()).find(|&i| closes(i)).map_or(chars.len(), |i| i + 1 + hashes))
}

/// `None` where the quote starts a lifetime.
fn char_end(chars: &[char], at: usize) -> Option<usize> {
    match chars.get(at + 1)? {
        '\\' => (at + 3..chars.len().min(at + 14)).find(|&i| chars[i] == '\'').map(|i| i + 1),
        _ if chars.get(at + 2) == Some(&'\'') => Some(at + 3),
        _ => None,
    }
}

fn continues_a_word(chars: &[char], at: usize) -> bool {
    // The `b` of a raw byte string is no word of its own.
    let before = at.checked_sub(1).map(|i| chars[i]);
    before.is_some_and(|c| (c.is_alphanumeric() || c == '_') && c != 'b')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let code = code_only(text);
        let words: Vec<&str> = code.split(' ').filter(|word| !word.is_empty()).collect();
        assert_eq!(words.join(" "), expected, "{text}");
        assert_eq!(code.chars().count(), text.chars().count(), "columns stay where they are: {text}");
    }

    #[test]
    fn comments_vanish() {
        check("a // b\nc", "a \nc");
        check("a /* b /* c */ d */ e", "a e");
        check("a /* b\n c", "a \n");
    }

    #[test]
    fn strings_vanish_with_their_escapes() {
        check(r#"f("a \" b", c)"#, "f( , c)");
        check("f(r#\"a\" b\"#, c)", "f( , c)");
        check("f(br\"a\\\", c)", "f(b , c)");
        check("\"a\nb\" c", "\n c");
    }

    #[test]
    fn characters_vanish_but_lifetimes_stay() {
        check("'\"' 'a' '\\'' '\\u{1F600}' x", "x");
        check("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)");
    }

    #[test]
    fn a_raw_name_is_code() {
        check("let r#type = for_r;", "let r#type = for_r;");
    }
}
