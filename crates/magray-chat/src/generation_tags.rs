//! Takes the tags `{% generation %}` and `{% endgeneration %}` out of a template: they mark text to train on.
//! Changes no other byte.

/// The template with tags that the library knows, which trim white space as those do and render what they hold.
pub(crate) fn replace(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        text.push_str(before);
        // The end stands behind the opening: `{%}` has none.
        let Some(inner) = tag[2..].find("%}").map(|end| &tag[2..2 + end]) else {
            text.push_str(tag);
            return text;
        };
        let word = inner.trim_matches(['-', '+']).trim();
        let instead = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        match instead {
            Some(instead) => {
                text.push_str("{%");
                text.push_str(&inner.replacen(word, &format!(" {instead} "), 1));
                text.push_str("%}");
                rest = &tag[inner.len() + 4..];
            }
            // Only the opening is passed over: what looks like an end may be inside a string.
            None => {
                text.push_str("{%");
                rest = &tag[2..];
            }
        }
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_these_tags_are_replaced() {
        assert_eq!(replace("a{%- generation -%}b{% endgeneration %}c"), "a{%-  if true  -%}b{%  endif  %}c");
        for same in [
            "",
            "{%",
            "{% if x %}{{ generation }}{% endif %}",
            "{{ '{% ' }} generation %}",
            "é{%é",
            "{%}",
            "{%} {% a %}",
        ] {
            assert_eq!(replace(same), same);
        }
    }
}
