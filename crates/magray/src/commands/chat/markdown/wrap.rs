//! Breaks lines between words before they are wider than the terminal.
//! Knows columns and no Markdown; styles take no columns.

use unicode_width::UnicodeWidthChar;

/// A terminal that is narrower is not wrapped for.
const COLUMNS_MIN: usize = 20;

/// Lines that are being written.
pub(super) struct Wrap {
    out: String,
    columns: usize,
    /// Columns of the line that are used.
    used: usize,
    /// Spaces before the word.
    spaces: usize,
    /// A word that is not complete, with the styles in it, and its columns.
    word: String,
    word_columns: usize,
    /// Where further lines of an item begin.
    indent: usize,
    /// Columns that every line is set off by.
    set_off: usize,
}

impl Wrap {
    pub(super) fn new(columns: usize) -> Self {
        Self {
            out: String::new(),
            columns: columns.max(COLUMNS_MIN),
            used: 0,
            spaces: 0,
            word: String::new(),
            word_columns: 0,
            indent: 0,
            set_off: 0,
        }
    }

    /// What is complete.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }

    pub(super) fn style(&mut self, signs: &str) {
        match self.word.is_empty() && self.spaces == 0 {
            true => self.out.push_str(signs),
            false => self.word.push_str(signs),
        }
    }

    pub(super) fn character(&mut self, character: char) {
        if character == ' ' {
            self.end_word();
            self.spaces += 1;
            return;
        }
        let columns = character.width().unwrap_or(0);
        let left = self.columns - self.first_column().min(self.columns / 2);
        // What is wider than a line has to be broken somewhere.
        if self.word_columns + columns > left {
            self.end_word();
        }
        self.word.push(character);
        self.word_columns += columns;
        // Scripts whose characters are wide have no spaces, and break anywhere.
        if columns > 1 {
            self.end_word();
        }
    }

    pub(super) fn new_line(&mut self) {
        self.end_word();
        self.spaces = 0;
        self.used = 0;
        self.out.push('\n');
    }

    pub(super) fn indent(&mut self, columns: usize) {
        self.end_word();
        self.indent = columns;
    }

    pub(super) fn set_off(&mut self, columns: usize) {
        self.end_word();
        self.set_off = columns;
    }

    fn first_column(&self) -> usize {
        self.set_off + self.indent.min(self.columns / 2)
    }

    fn end_word(&mut self) {
        if self.word_columns == 0 {
            let signs = std::mem::take(&mut self.word);
            self.out.push_str(&signs);
            return;
        }
        if self.used == 0 && self.set_off > 0 {
            self.out.extend(std::iter::repeat_n(' ', self.set_off));
            self.used = self.set_off;
        }
        let is_first = self.used <= self.set_off;
        if !is_first && self.used + self.spaces + self.word_columns > self.columns {
            self.out.push('\n');
            let first = self.first_column();
            self.out.extend(std::iter::repeat_n(' ', first));
            self.used = first;
        } else {
            let spaces = self.spaces.min(self.columns.saturating_sub(self.used + self.word_columns));
            self.out.extend(std::iter::repeat_n(' ', spaces));
            self.used += spaces;
        }
        self.spaces = 0;
        self.out.push_str(&std::mem::take(&mut self.word));
        self.used += std::mem::take(&mut self.word_columns);
    }
}
