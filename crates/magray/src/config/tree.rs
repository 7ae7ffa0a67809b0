//! Reads TOML and YAML into one tree whose nodes know their line.
//! Does not know which keys are allowed.

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, ScanError, YamlData};
use saphyr_parser::{Event, Parser};
use toml::de::{DeTable, DeValue};

/// No configuration is nested as deeply. The tree is made and dropped by calls within calls, which end at the stack's end.
const DEPTH_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) data: Data,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Data {
    /// Nothing was written after the key.
    Null,
    /// A number, switch or text, as it was written.
    Scalar(String),
    List(Vec<Node>),
    Table(Vec<(String, Node)>),
}

/// Lines do not matter for equality: tests compare what two formats say.
impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.data == other.data
    }
}

#[derive(Debug)]
pub(crate) struct SyntaxError {
    pub(crate) line: usize,
    pub(crate) message: String,
}

pub(crate) fn parse_toml(text: &str) -> Result<Node, SyntaxError> {
    let lines = Lines::of(text);
    match DeTable::parse(text) {
        Ok(table) => Ok(Node { line: 1, data: toml_table(table.get_ref(), &lines) }),
        Err(error) => Err(SyntaxError {
            line: error.span().map_or(1, |span| lines.line_at(span.start)),
            message: error.message().to_owned(),
        }),
    }
}

/// Reads YAML: one document whose top is a table, or nothing at all.
pub(crate) fn parse_yaml(text: &str) -> Result<Node, SyntaxError> {
    // The parser counts one line more where the last does not end. To YAML, CR, LF and both end one.
    let lines = 1 + text.replace("\r\n", "\n").matches(['\n', '\r']).count();
    let within = |error: SyntaxError| SyntaxError { line: error.line.min(lines), ..error };
    check_yaml(text).and_then(|()| read_yaml(text, lines)).map_err(within)
}

fn read_yaml(text: &str, lines: usize) -> Result<Node, SyntaxError> {
    match MarkedYaml::load_from_str(text).map_err(|error| yaml_error(&error))?.as_slice() {
        [] => Ok(Node { line: 1, data: Data::Table(Vec::new()) }),
        [document] => yaml_node(document, lines),
        [_, second, ..] => Err(SyntaxError {
            line: second.span.start.line(),
            message: "a second document; only one is read".to_owned(),
        }),
    }
}

/// Refuses YAML that is small as a file and large as a tree: deep nesting, and aliases, each of which copies what it names.
fn check_yaml(text: &str) -> Result<(), SyntaxError> {
    let mut depth = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| yaml_error(&error))?;
        let refuse = |message: &str| Err(SyntaxError { line: span.start.line(), message: message.to_owned() });
        match event {
            Event::SequenceStart(..) | Event::MappingStart(..) if depth == DEPTH_MAX => {
                return refuse("nested more deeply than any setting");
            }
            Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
            Event::SequenceEnd | Event::MappingEnd => depth -= 1,
            Event::Alias(_) => return refuse("aliases are not used here; write the value again"),
            _ => {}
        }
    }
    Ok(())
}

fn yaml_error(error: &ScanError) -> SyntaxError {
    SyntaxError { line: error.marker().line(), message: error.info().to_owned() }
}

fn toml_table(table: &DeTable<'_>, lines: &Lines) -> Data {
    let mut rows: Vec<_> = table.iter().collect();
    // The parser sorts by name; people read messages and tables in the order of their file.
    rows.sort_by_key(|(key, _)| key.span().start);
    let row = |(key, value): (&toml::Spanned<_>, &toml::Spanned<_>)| {
        let name: &std::borrow::Cow<'_, str> = key.get_ref();
        (name.to_string(), Node { line: lines.line_at(key.span().start), ..toml_node(value, lines) })
    };
    Data::Table(rows.into_iter().map(row).collect())
}

fn toml_node(value: &toml::Spanned<DeValue<'_>>, lines: &Lines) -> Node {
    let data = match value.get_ref() {
        DeValue::String(text) => Data::Scalar(text.to_string()),
        DeValue::Integer(number) => {
            // Hexadecimal and the like become decimal, which is what settings are read from.
            let decimal = i64::from_str_radix(number.as_str(), number.radix());
            Data::Scalar(decimal.map_or_else(|_| number.to_string(), |number| number.to_string()))
        }
        DeValue::Float(number) => Data::Scalar(number.as_str().to_owned()),
        DeValue::Boolean(on) => Data::Scalar(on.to_string()),
        DeValue::Datetime(time) => Data::Scalar(time.to_string()),
        DeValue::Array(items) => Data::List(items.iter().map(|item| toml_node(item, lines)).collect()),
        DeValue::Table(table) => toml_table(table, lines),
    };
    Node { line: lines.line_at(value.span().start), data }
}

fn yaml_node(yaml: &MarkedYaml<'_>, lines: usize) -> Result<Node, SyntaxError> {
    let line = yaml.span.start.line().min(lines);
    let refuse = |message: &str| Err(SyntaxError { line, message: message.to_owned() });
    let data = match &yaml.data {
        YamlData::Value(Scalar::Null) => Data::Null,
        YamlData::Value(Scalar::Boolean(on)) => Data::Scalar(on.to_string()),
        YamlData::Value(Scalar::Integer(number)) => Data::Scalar(number.to_string()),
        YamlData::Value(Scalar::FloatingPoint(number)) => Data::Scalar(number.to_string()),
        YamlData::Value(Scalar::String(text)) => Data::Scalar(text.to_string()),
        YamlData::Sequence(items) => {
            Data::List(items.iter().map(|item| yaml_node(item, lines)).collect::<Result<_, _>>()?)
        }
        YamlData::Mapping(rows) => {
            let row = |(key, value): (&MarkedYaml<'_>, &MarkedYaml<'_>)| {
                let node = yaml_node(value, lines)?;
                match yaml_node(key, lines)? {
                    Node { data: Data::Scalar(name), line } => Ok((name, Node { line, ..node })),
                    Node { line, .. } => Err(SyntaxError { line, message: "a key must be a plain name".to_owned() }),
                }
            };
            Data::Table(rows.iter().map(row).collect::<Result<_, _>>()?)
        }
        YamlData::Tagged(..) => return refuse("tags are not used here"),
        YamlData::Representation(..) | YamlData::Alias(_) | YamlData::BadValue => return refuse("not a plain value"),
    };
    Ok(Node { line, data })
}

/// Where each line starts, to turn byte offsets into line numbers.
struct Lines {
    starts: Vec<usize>,
}

impl Lines {
    fn of(text: &str) -> Self {
        let after_breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { starts: std::iter::once(0).chain(after_breaks).collect() }
    }

    /// The line, counted from 1, that holds this byte.
    fn line_at(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_and_yaml_say_the_same() {
        let toml = parse_toml("[gpu]\nenabled = true\n[gpu.batch]\nmax_size = 0x10\nids = [0, 1]\n").unwrap();
        let yaml = parse_yaml("gpu:\n  enabled: true\n  batch:\n    max_size: 16\n    ids: [0, 1]\n").unwrap();
        assert_eq!(toml, yaml);
    }

    #[test]
    fn deep_nesting_and_aliases_are_refused_before_they_exhaust_stack_or_memory() {
        let deep = format!("a:\n  {}x", "- ".repeat(200_000));
        let error = parse_yaml(&deep).unwrap_err();
        assert_eq!((error.line, error.message.as_str()), (2, "nested more deeply than any setting"));
        let error = parse_yaml("a: &x [1, 2]\nb: [*x, *x]\n").unwrap_err();
        assert_eq!((error.line, error.message.as_str()), (2, "aliases are not used here; write the value again"));
        assert!(parse_yaml("a: {b: {c: [1, [2]]}}").is_ok());
    }

    #[test]
    fn an_error_at_the_end_names_a_line_that_the_file_has() {
        let error = parse_yaml("a: https:odel]/\nname /").unwrap_err();
        assert_eq!((error.line, error.message.as_str()), (2, "simple key expected"));
        let error = parse_yaml("a: 1\n---").unwrap_err();
        assert_eq!((error.line, error.message.as_str()), (2, "a second document; only one is read"));
    }

    #[test]
    fn nodes_know_their_lines() {
        for tree in [parse_toml("[a]\n\nx = 1\n"), parse_yaml("a:\n\n  x: 1\n")] {
            let Data::Table(top) = tree.unwrap().data else { panic!("no table") };
            let Data::Table(rows) = &top[0].1.data else { panic!("no table") };
            assert_eq!((top[0].1.line, rows[0].1.line), (1, 3));
        }
    }

    #[test]
    fn broken_files_name_the_line() {
        assert_eq!(parse_toml("a = 1\nb = = 2\n").unwrap_err().line, 2);
        assert_eq!(parse_toml("a = 1\na = 2\n").unwrap_err().line, 2);
        assert_eq!(parse_yaml("a: 1\nb: [1, 2\n").unwrap_err().line, 3);
        assert_eq!(parse_yaml("a: 1\na: 2\n").unwrap_err().line, 2);
        assert!(parse_yaml("a: 1\n---\nb: 2\n").unwrap_err().message.contains("second document"));
    }

    #[test]
    fn an_empty_file_is_an_empty_table() {
        assert_eq!(parse_toml("").unwrap().data, Data::Table(Vec::new()));
        assert_eq!(parse_yaml("").unwrap().data, Data::Table(Vec::new()));
    }
}
