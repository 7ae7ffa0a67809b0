//! The text layer of a PDF, page by page.
//! For files of strangers: on a thread of its own, with bounds on pages, streams, text and time. Reads no scanned pages.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use lopdf::{Dictionary, Document, Encoding, LoadOptions, Object, ObjectId, content::Content};

use super::refused::Refused;

const PAGES_MAX: usize = 10_000;
/// What the stream of a page or of a font may unpack to.
const STREAM_BYTES_MAX: usize = 32 << 20;
/// Parsers call themselves for what is nested.
const STACK_BYTES: usize = 16 << 20;
const TIME_MAX: Duration = Duration::from_secs(60);

/// Gaps between letters from this size on, in thousandths of the font's size, are spaces.
const SPACE: f32 = 180.0;
/// About the width of a letter, in parts of the font's size.
const LETTER: f32 = 0.5;

/// Text and title of a PDF.
pub(super) fn text(bytes: Vec<u8>, text_bytes_max: usize) -> Result<(String, Option<String>), Refused> {
    let (answer, answered) = mpsc::channel();
    let late = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&late);
    let started = thread::Builder::new().name("pdf".to_owned()).stack_size(STACK_BYTES).spawn(move || {
        // The other side waits no longer if this fails.
        _ = answer.send(read(&bytes, text_bytes_max, &stop));
    });
    let thread = started.map_err(|error| Refused::Unreadable(error.kind()))?;
    match answered.recv_timeout(TIME_MAX) {
        Ok(found) => found,
        Err(mpsc::RecvTimeoutError::Timeout) => {
            // It ends after the page that it is at.
            late.store(true, Ordering::Relaxed);
            Err(Refused::Pdf(format!("reading it took longer than {} s", TIME_MAX.as_secs())))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            _ = thread.join();
            Err(Refused::Pdf("it is broken in a way that the reader does not know".to_owned()))
        }
    }
}

fn read(bytes: &[u8], text_bytes_max: usize, stop: &AtomicBool) -> Result<(String, Option<String>), Refused> {
    let broken = |error: lopdf::Error| Refused::Pdf(error.to_string());
    let options = LoadOptions { max_decompressed_size: Some(STREAM_BYTES_MAX), ..LoadOptions::default() };
    let document = Document::load_mem_with_options(bytes, options).map_err(broken)?;
    if document.is_encrypted() {
        return Err(Refused::Pdf("it needs a password".to_owned()));
    }
    let pages = document.get_pages();
    if pages.len() > PAGES_MAX {
        return Err(Refused::Pdf(format!("it has {} pages; the most is {PAGES_MAX}", pages.len())));
    }
    let mut text = String::new();
    let mut first_error = None;
    for page in pages.into_values() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match page_text(&document, page) {
            Ok(page) => {
                text.push_str(page.trim());
                text.push_str("\n\n");
            }
            Err(error) => _ = first_error.get_or_insert(error),
        }
        if text.len() > text_bytes_max {
            return Err(Refused::TooLarge { bytes: text.len(), most: text_bytes_max });
        }
    }
    match (text.trim(), first_error) {
        ("", Some(error)) => Err(broken(error)),
        ("", None) => Err(Refused::Pdf("it has no text layer (scanned pages?)".to_owned())),
        (text, _) => Ok((text.to_owned(), title(&document))),
    }
}

fn title(document: &Document) -> Option<String> {
    let info = document.trailer.get(b"Info").ok()?;
    let info = document.dereference(info).ok()?.1.as_dict().ok()?;
    let title = lopdf::decode_text_string(info.get(b"Title").ok()?).ok()?;
    Some(title.trim().to_owned()).filter(|title| !title.is_empty())
}

fn page_text(document: &Document, page: ObjectId) -> lopdf::Result<String> {
    let fonts = document.get_page_fonts(page)?;
    let fonts: BTreeMap<_, _> =
        fonts.iter().filter_map(|(name, font)| Some((name.as_slice(), encoding(document, font)?))).collect();
    let content = Content::decode(&document.get_page_content_with_limit(page, STREAM_BYTES_MAX)?)?;
    let mut writer = Writer::default();
    for operation in &content.operations {
        let (operator, operands) = (operation.operator.as_str(), operation.operands.as_slice());
        match (operator, operands) {
            ("Tf", [Object::Name(name), size, ..]) => {
                writer.font = fonts.get(name.as_slice());
                writer.size = number(size);
            }
            ("Td" | "TD", [x, y]) => writer.moved(number(x), number(y)),
            ("Tm", [.., scale, x, y]) => writer.placed(number(scale), number(x), number(y)),
            ("T*" | "ET", _) => writer.line(),
            ("Tj" | "'", [shown]) => writer.show(operator, shown),
            ("\"", [_, _, shown]) => writer.show(operator, shown),
            ("TJ", [Object::Array(parts)]) => parts.iter().for_each(|part| writer.show(operator, part)),
            _ => {}
        }
    }
    Ok(writer.text)
}

/// A font that cannot be read costs its own text alone.
fn encoding<'d>(document: &'d Document, font: &'d Dictionary) -> Option<Encoding<'d>> {
    font.get_font_encoding_with_limit(document, STREAM_BYTES_MAX).ok()
}

/// Puts shown strings one after the other, with spaces and lines where the page moves on.
struct Writer<'d> {
    text: String,
    font: Option<&'d Encoding<'d>>,
    size: f32,
    scale: f32,
    /// Where the line began, and about how far it was written.
    x: f32,
    y: f32,
    written: f32,
}

impl Default for Writer<'_> {
    fn default() -> Self {
        Self { text: String::new(), font: None, size: 1.0, scale: 1.0, x: 0.0, y: 0.0, written: 0.0 }
    }
}

impl Writer<'_> {
    fn show(&mut self, operator: &str, shown: &Object) {
        match shown {
            Object::String(bytes, _) => {
                if operator != "Tj" && operator != "TJ" {
                    self.line();
                }
                // A string in a font that is not known is left out: its bytes are no text.
                let Some(text) = self.font.and_then(|font| Document::decode_text(font, bytes).ok()) else { return };
                self.written += text.chars().count() as f32 * LETTER * self.size;
                self.text.extend(text.chars().filter(|c| !c.is_control()));
            }
            gap => {
                let gap = -number(gap);
                self.written += gap / 1000.0 * self.size;
                if gap > SPACE {
                    self.space();
                }
            }
        }
    }

    /// By so much from where the line began, in units of the text.
    fn moved(&mut self, x: f32, y: f32) {
        if y.abs() > 0.3 * self.size {
            self.line();
        } else if x < 0.0 || x > self.written + SPACE / 1000.0 * self.size {
            self.space();
        }
        (self.x, self.y) = (self.x + x * self.scale, self.y + y * self.scale);
        self.written = 0.0;
    }

    /// To a place of the page.
    fn placed(&mut self, scale: f32, x: f32, y: f32) {
        // Of matrices that turn the text the scale is 0.
        let scale = if scale.abs() > f32::EPSILON { scale.abs() } else { self.scale };
        self.moved((x - self.x) / scale, (y - self.y) / scale);
        (self.x, self.y, self.scale) = (x, y, scale);
    }

    fn space(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with(char::is_whitespace) {
            self.text.push(' ');
        }
    }

    fn line(&mut self) {
        self.written = 0.0;
        self.text.truncate(self.text.trim_end_matches(' ').len());
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
    }
}

fn number(object: &Object) -> f32 {
    object.as_float().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PDF of one page with this content, and no table of where its objects are: the reader finds them.
    fn pdf(content: &str) -> Vec<u8> {
        format!(
            "%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n\
             2 0 obj\n<< /Type /Pages /Kids [3 0 R] /Count 1 >>\nendobj\n\
             3 0 obj\n<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>\nendobj\n\
             4 0 obj\n<< /Length {} >>\nstream\n{content}\nendstream\nendobj\n\
             5 0 obj\n<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>\nendobj\n\
             6 0 obj\n<< /Title (On testing) >>\nendobj\n\
             trailer\n<< /Root 1 0 R /Info 6 0 R /Size 7 >>\nstartxref\n0\n%%EOF\n",
            content.len(),
        )
        .into_bytes()
    }

    fn error(bytes: Vec<u8>) -> String {
        text(bytes, 1 << 20).expect_err("it is refused").to_string()
    }

    #[test]
    fn words_and_lines_stay_apart() {
        let page = "BT /F1 12 Tf 72 700 Td (Hello) Tj 60 0 Td (world) Tj 0 -14 Td [(sec) -20 (ond) -300 (line)] TJ T* (caf\\351) Tj ET";
        let (found, title) = text(pdf(page), 1 << 20).expect("a text layer");
        assert_eq!((found.as_str(), title.as_deref()), ("Hello world\nsecond line\ncafé", Some("On testing")));
    }

    #[test]
    fn what_is_no_text_is_refused_with_a_reason() {
        assert!(error(pdf("0 0 m 1 1 l S")).contains("no text layer"));
        error(b"%PDF-1.7\ngarbage".to_vec());
        let long = format!("BT /F1 12 Tf {} ET", "(many words here) Tj ".repeat(100));
        let refused = text(pdf(&long), 1000).expect_err("too much text");
        assert!(matches!(refused, Refused::TooLarge { most: 1000, .. }), "{refused}");
    }

    #[test]
    fn no_damaged_file_ends_the_process() {
        let good = pdf("BT /F1 12 Tf (Hello) Tj ET");
        for at in (0..good.len()).step_by(7) {
            let mut bad = good.clone();
            bad[at] = bad[at].wrapping_add(13);
            _ = text(bad, 1 << 20);
            _ = text(good[..at].to_vec(), 1 << 20);
        }
    }
}
