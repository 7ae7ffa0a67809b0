//! The rows of an output, in the form that was chosen.
//! Holds at most the rows of one window.

use std::io::{self, Write};

use serde::Serialize;

use super::{
    Format, Npy, OutputError, Sink,
    journal::Record,
    number,
    parquet::Parquet,
    row::{Layout, Row},
    safe,
};

pub(crate) struct Rows {
    kind: Kind,
    layout: Layout,
}

enum Kind {
    Preview(Sink),
    Values(Sink),
    JsonLines(Sink),
    Npy(Npy),
    Parquet(Parquet),
}

impl Rows {
    pub(crate) fn start(format: Format, sink: Sink, layout: Layout) -> Result<Self, OutputError> {
        let kind = match format {
            Format::Text if sink.is_terminal() => Kind::Preview(sink),
            Format::Text => Kind::Values(sink),
            Format::Jsonl => Kind::JsonLines(sink),
            Format::Npy => Kind::Npy(Npy::start(sink)?),
            Format::Parquet => Kind::Parquet(Parquet::start(sink, layout)?),
        };
        Ok(Self { kind, layout })
    }

    pub(crate) fn write(&mut self, row: &Row<'_>) -> Result<(), OutputError> {
        let with_text = self.layout.with_text;
        match &mut self.kind {
            Kind::Preview(out) => out.checked(|out| write_preview(out, row)),
            Kind::Values(out) => out.checked(|out| write_values(out, row.vector)),
            Kind::JsonLines(out) => out.checked(|out| write_json(out, row, with_text)),
            Kind::Npy(npy) => npy.write_row(row.vector),
            Kind::Parquet(parquet) => {
                parquet.write_row(row);
                Ok(())
            }
        }
    }

    pub(crate) fn are_shown(&self) -> bool {
        match &self.kind {
            Kind::Preview(_) => true,
            Kind::Values(out) | Kind::JsonLines(out) => out.is_terminal(),
            Kind::Npy(_) | Kind::Parquet(_) => false,
        }
    }

    /// All rows up to here are written: a reader gets them, and a later run continues after them.
    pub(crate) fn commit(&mut self, texts: u64, input_digest: String) -> Result<(), OutputError> {
        let at = Record { texts, input_digest, ..Record::default() };
        match &mut self.kind {
            Kind::Preview(out) | Kind::Values(out) | Kind::JsonLines(out) => out.commit(at),
            Kind::Npy(npy) => npy.commit(at),
            Kind::Parquet(parquet) => parquet.commit(at),
        }
    }

    /// Ends the output: only now does a file appear under its name.
    pub(crate) fn finish(self) -> Result<(), OutputError> {
        match self.kind {
            Kind::Preview(out) | Kind::Values(out) | Kind::JsonLines(out) => out.finish(),
            Kind::Npy(npy) => npy.finish(),
            Kind::Parquet(parquet) => parquet.finish(),
        }
    }
}

fn write_preview(out: &mut dyn Write, row: &Row<'_>) -> io::Result<()> {
    const VALUES: usize = 5;
    const CHARS: usize = 40;
    let norm = row.vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    write!(out, "{}: {} values, norm {norm:.4}  [", row.index, row.vector.len())?;
    for value in row.vector.iter().take(VALUES) {
        write!(out, "{value:.4}, ")?;
    }
    let start: String = row.text.chars().take(CHARS).collect();
    let start = safe(&start);
    let dots = if row.text.chars().nth(CHARS).is_some() { "..." } else { "" };
    writeln!(out, "...]  {start}{dots}")
}

fn write_values(out: &mut dyn Write, vector: &[f32]) -> io::Result<()> {
    write_numbers(out, vector, b" ", b"nan")?;
    out.write_all(b"\n")
}

fn write_numbers(out: &mut dyn Write, vector: &[f32], between: &[u8], not_finite: &[u8]) -> io::Result<()> {
    for (at, value) in vector.iter().enumerate() {
        if at > 0 {
            out.write_all(between)?;
        }
        match value.is_finite() {
            true => number::write(out, *value)?,
            false => out.write_all(not_finite)?,
        }
    }
    Ok(())
}

fn write_json(out: &mut dyn Write, row: &Row<'_>, with_text: bool) -> io::Result<()> {
    write!(out, "{{\"index\":{}", row.index)?;
    if let Some(place) = row.place {
        if let Some(file) = place.file {
            write_member(out, "file", file)?;
        }
        write_member(out, "line", &place.line)?;
    }
    if let Some(id) = row.id {
        write_member(out, "id", id)?;
    }
    if with_text {
        write_member(out, "text", row.text)?;
    }
    out.write_all(b",\"embedding\":[")?;
    write_numbers(out, row.vector, b",", b"null")?;
    out.write_all(b"]")?;
    if row.is_truncated {
        write_member(out, "truncated", &true)?;
    }
    write_member(out, "device", &row.origin.device)?;
    for (name, value) in [("precision", row.origin.precision.as_deref()), ("fallback", row.origin.fallback.as_deref())]
    {
        if let Some(value) = value {
            write_member(out, name, value)?;
        }
    }
    out.write_all(b"}\n")
}

fn write_member(out: &mut dyn Write, name: &str, value: &(impl Serialize + ?Sized)) -> io::Result<()> {
    write!(out, ",\"{name}\":")?;
    serde_json::to_writer(out, value).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Origin, Place},
        *,
    };
    use expect_test::expect;

    const VECTOR: &[f32] = &[0.5, -0.25, 1e-7, 3.0, 0.0, 1.0];

    fn origin(fallback: Option<&'static str>) -> Origin {
        let fallback = fallback.map(str::to_owned);
        Origin { device: "cpu".to_owned(), precision: Some("f32".to_owned()), fallback }
    }

    fn row<'a>(text: &'a str, id: Option<&'a serde_json::Value>, origin: &'a Origin) -> Row<'a> {
        Row { index: 3, text, id, place: None, vector: VECTOR, is_truncated: id.is_some(), origin }
    }

    fn written(write: impl Fn(&mut dyn Write) -> io::Result<()>) -> String {
        let mut bytes = Vec::new();
        write(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_preview_is_one_safe_line() {
        let origin = origin(None);
        let preview = written(|out| write_preview(out, &row("red\u{1b}[31m\ntext", None, &origin)));
        expect![[r#"
            3: 6 values, norm 3.2113  [0.5000, -0.2500, 0.0000, 3.0000, 0.0000, ...]  red\u{1b}[31m\ntext
        "#]]
        .assert_eq(&preview);
        let long = "x".repeat(41);
        assert!(written(|out| write_preview(out, &row(&long, None, &origin))).ends_with("x...\n"));
    }

    #[test]
    fn values_read_back_exactly() {
        let line = written(|out| write_values(out, VECTOR));
        let values: Vec<f32> = line.split_whitespace().map(|value| value.parse().unwrap()).collect();
        assert_eq!(values, VECTOR);
    }

    #[test]
    fn json_names_the_device_and_gives_id_and_place_back() {
        let id = serde_json::json!("a-1");
        expect![[r#"
            {"index":3,"id":"a-1","embedding":[0.5,-0.25,1.00000001e-7,3.0,0.0,1.0],"truncated":true,"device":"cpu","precision":"f32"}
        "#]]
        .assert_eq(&written(|out| write_json(out, &row("x", Some(&id), &origin(None)), false)));
        let origin = origin(Some("out_of_memory"));
        let place = Some(Place { file: Some("b.txt"), line: 7 });
        expect![[r#"
            {"index":3,"file":"b.txt","line":7,"text":"a \"b\"","embedding":[0.5,-0.25,1.00000001e-7,3.0,0.0,1.0],"device":"cpu","precision":"f32","fallback":"out_of_memory"}
        "#]]
        .assert_eq(&written(|out| write_json(out, &Row { place, ..row("a \"b\"", None, &origin) }, true)));
        let not_finite = [f32::NAN, f32::INFINITY];
        let line = written(|out| write_json(out, &Row { vector: &not_finite, ..row("x", None, &origin) }, false));
        assert!(line.contains("[null,null]"), "{line}");
    }
}
