//! Keys as they are written in settings and files of keys.
//! Compares none: the server does.

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct WrittenKey {
    secret: String,
    name: Option<String>,
}

const NAME_MAX: usize = 64;

impl WrittenKey {
    pub(crate) fn unnamed(secret: String) -> Self {
        Self { secret, name: None }
    }

    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// Reads keys, one a line or separated by commas. What follows ` #` is the name of the line's key; blank lines and lines
/// that begin with `#` have none.
pub(crate) fn read_keys(text: &str) -> Vec<WrittenKey> {
    text.lines().filter(|line| !line.trim_start().starts_with('#')).flat_map(keys_of_line).collect()
}

fn keys_of_line(line: &str) -> Vec<WrittenKey> {
    let (keys, name) = line.split_once(" #").unwrap_or((line, ""));
    let name: String = name.trim().chars().filter(|letter| !letter.is_control()).take(NAME_MAX).collect();
    let keys = keys.split(',').map(str::trim).filter(|key| !key.is_empty());
    let written =
        |key: &str| WrittenKey { secret: key.to_owned(), name: Some(name.clone()).filter(|name| !name.is_empty()) };
    keys.map(written).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_on_lines_or_between_commas() {
        let read = |text| -> Vec<String> { read_keys(text).into_iter().map(|key| key.secret).collect() };
        assert_eq!(read("a, b\n# no\n\n  c  \n"), ["a", "b", "c"]);
        assert_eq!(read("a#b"), ["a#b"], "a key may have the sign in it");
    }
}
