//! Markdown for a terminal as it streams: headings, bold, code, lists and quotes, wrapped to the width.
//! Passes on no control character: what a model says cannot steer the terminal.

#[cfg(test)]
mod tests;
mod wrap;

use wrap::Wrap;

const BOLD: &str = "\x1b[1m";
const ITALIC: &str = "\x1b[3m";
const DIM: &str = "\x1b[2m";
const CODE: &str = "\x1b[36m";
const RESET: &str = "\x1b[0m";
/// Code is set off by this many columns.
const CODE_INDENT: usize = 2;

/// Markdown that is being written.
pub(super) struct Markdown {
    out: Wrap,
    place: Place,
    style: Style,
    /// Signs whose meaning the next character tells.
    run: String,
    /// The last character of the line, which tells whether a sign opens or closes.
    last: char,
}

/// Where in the text the next character is.
enum Place {
    /// At the beginning of a line, with what has come of it.
    LineStart(String),
    Inside,
    /// In a block of code; the beginning of a line may end it.
    Code(Option<String>),
    /// In a line that is not shown: the one that opens or ends a block of code.
    Fence {
        opens: bool,
    },
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Style {
    is_bold: bool,
    is_italic: bool,
    is_code: bool,
    is_heading: bool,
    is_dim: bool,
}

/// What a line begins with.
enum LineKind {
    /// More has to come.
    Open,
    Fence,
    Heading,
    /// What is shown in place of the sign, and the columns that further lines of the item are set in.
    Item {
        shown: String,
        indent: usize,
    },
    Plain,
}

impl Markdown {
    /// For a terminal of this many columns.
    pub(super) fn new(columns: usize) -> Self {
        Self {
            out: Wrap::new(columns),
            place: Place::LineStart(String::new()),
            style: Style::default(),
            run: String::new(),
            last: '\n',
        }
    }

    /// Text that is less important than the answer, as thoughts are.
    pub(super) fn dimmed(columns: usize) -> Self {
        let mut markdown = Self::new(columns);
        markdown.style.is_dim = true;
        markdown.out.style(DIM);
        markdown
    }

    /// What can be shown after this text.
    pub(super) fn push(&mut self, text: &str) -> String {
        for character in text.chars() {
            match character {
                '\n' => self.end_line(),
                '\t' => (0..4).for_each(|_| self.take(' ')),
                control if control.is_control() => {}
                character => self.take(character),
            }
        }
        self.out.take()
    }

    /// What was held back, and the end of the last line.
    pub(super) fn finish(&mut self) -> String {
        let has_line = match &self.place {
            Place::LineStart(start) => !start.is_empty(),
            Place::Inside => true,
            Place::Code(start) => start.as_ref().is_none_or(|start| !start.is_empty()),
            Place::Fence { .. } => false,
        };
        if has_line {
            self.end_line();
        }
        self.style = Style::default();
        self.out.style(RESET);
        self.out.take()
    }

    fn take(&mut self, character: char) {
        match &mut self.place {
            Place::LineStart(start) => {
                start.push(character);
                let kind = line_kind(start);
                self.begin_line(kind);
            }
            Place::Inside => self.inline(character),
            Place::Code(Some(start)) => {
                start.push(character);
                if !"```".starts_with(start.trim_start()) {
                    let start = std::mem::take(start);
                    self.place = if start.trim_start().starts_with("```") {
                        Place::Fence { opens: false }
                    } else {
                        start.chars().for_each(|character| self.out.character(character));
                        Place::Code(None)
                    };
                }
            }
            Place::Code(None) => self.out.character(character),
            Place::Fence { .. } => {}
        }
    }

    fn begin_line(&mut self, kind: LineKind) {
        let Place::LineStart(start) = &mut self.place else { return };
        let start = std::mem::take(start);
        match kind {
            LineKind::Open => self.place = Place::LineStart(start),
            LineKind::Fence => self.place = Place::Fence { opens: true },
            LineKind::Heading => {
                self.style.is_heading = true;
                self.show_style();
                self.place = Place::Inside;
            }
            LineKind::Item { shown, indent } => {
                shown.chars().for_each(|character| self.out.character(character));
                self.out.indent(indent);
                self.last = ' ';
                self.place = Place::Inside;
            }
            LineKind::Plain => {
                self.place = Place::Inside;
                start.chars().for_each(|character| self.inline(character));
            }
        }
    }

    fn end_line(&mut self) {
        match std::mem::replace(&mut self.place, Place::LineStart(String::new())) {
            Place::LineStart(start) if start.trim_start().starts_with("```") => {
                self.begin_code();
                return;
            }
            Place::LineStart(start) => {
                self.place = Place::Inside;
                start.chars().for_each(|character| self.inline(character));
                self.place = Place::LineStart(String::new());
            }
            Place::Inside => {}
            Place::Code(start) => {
                if start.as_deref().is_some_and(|start| start.trim_start() == "```") {
                    self.end_code();
                    return;
                }
                start.unwrap_or_default().chars().for_each(|character| self.out.character(character));
                self.out.new_line();
                self.place = Place::Code(Some(String::new()));
                return;
            }
            Place::Fence { opens: true } => {
                self.begin_code();
                return;
            }
            Place::Fence { opens: false } => {
                self.end_code();
                return;
            }
        }
        self.end_run(' ');
        // A style that is not closed ends with its line.
        let plain = Style { is_dim: self.style.is_dim, ..Style::default() };
        if self.style != plain {
            self.style = plain;
            self.show_style();
        }
        self.last = '\n';
        self.out.new_line();
        self.out.indent(0);
    }

    fn begin_code(&mut self) {
        self.style.is_code = true;
        self.show_style();
        self.out.set_off(CODE_INDENT);
        self.place = Place::Code(Some(String::new()));
    }

    fn end_code(&mut self) {
        self.style.is_code = false;
        self.show_style();
        self.out.set_off(0);
        self.last = '\n';
        self.place = Place::LineStart(String::new());
    }

    fn inline(&mut self, character: char) {
        if self.run.starts_with('\\') {
            self.run.clear();
            if !character.is_ascii_punctuation() {
                self.show('\\');
            }
            self.show(character);
            return;
        }
        if self.run.starts_with('*') && character != '*' {
            self.end_run(character);
        }
        match character {
            '`' => {
                self.style.is_code = !self.style.is_code;
                self.show_style();
                self.last = character;
            }
            '*' | '\\' if !self.style.is_code => self.run.push(character),
            character => self.show(character),
        }
    }

    /// Stars came, and then this character: they set a style, or are only stars.
    fn end_run(&mut self, next: char) {
        let run = std::mem::take(&mut self.run);
        if run.starts_with('\\') {
            return self.show('\\');
        }
        let (bold, italic) = (run.len() >= 2, run.len() % 2 == 1);
        let opens = !next.is_whitespace() && !self.last.is_alphanumeric();
        let closes = !self.last.is_whitespace();
        let may = |is_on: bool| if is_on { closes } else { opens || (!next.is_whitespace() && run.len() >= 2) };
        let is_style = (!bold || may(self.style.is_bold)) && (!italic || may(self.style.is_italic));
        if run.is_empty() || run.len() > 3 || !is_style {
            return run.chars().for_each(|character| self.show(character));
        }
        self.style.is_bold ^= bold;
        self.style.is_italic ^= italic;
        self.show_style();
    }

    fn show(&mut self, character: char) {
        self.last = character;
        self.out.character(character);
    }

    fn show_style(&mut self) {
        let mut signs = RESET.to_owned();
        let Style { is_bold, is_italic, is_code, is_heading, is_dim } = self.style;
        for (is_on, sign) in [(is_dim, DIM), (is_bold || is_heading, BOLD), (is_italic, ITALIC), (is_code, CODE)] {
            if is_on {
                signs += sign;
            }
        }
        self.out.style(&signs);
    }
}

/// What a line is that begins so.
fn line_kind(start: &str) -> LineKind {
    let text = start.trim_start_matches(' ');
    let spaces = start.len() - text.len();
    let Some(first) = text.chars().next() else {
        return if spaces < 12 { LineKind::Open } else { LineKind::Plain };
    };
    let item = |sign: &str| {
        let shown = format!("{}{sign} ", " ".repeat(spaces));
        LineKind::Item { indent: shown.chars().count(), shown }
    };
    let digits = text.chars().take_while(char::is_ascii_digit).count();
    match first {
        '`' if text.starts_with("```") => LineKind::Fence,
        '`' if "```".starts_with(text) => LineKind::Open,
        '#' if text.trim_start_matches('#') == " " && text.len() <= 7 => LineKind::Heading,
        '#' if text.chars().all(|character| character == '#') && text.len() <= 6 => LineKind::Open,
        '-' | '*' | '+' if text.len() == 1 => LineKind::Open,
        '-' | '*' | '+' if text[1..].starts_with(' ') => item("\u{2022}"),
        '>' if text.len() == 1 => LineKind::Open,
        '>' if text[1..].starts_with(' ') => item("\u{2502}"),
        _ if digits > 0 && digits < 4 => match &text[digits..] {
            "" | "." => LineKind::Open,
            ". " => item(&text[..=digits]),
            _ => LineKind::Plain,
        },
        _ => LineKind::Plain,
    }
}
