//! What keys mean in `magray top`: the selected model, its order, questions before something is moved.
//! Moves nothing itself and draws nothing.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::source::MoveKind;
use crate::control::ModelReport;

/// What keys have set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Controls {
    /// The name of the selected model; `None`: the first.
    pub(super) selected: Option<String>,
    pub(super) order: Order,
    pub(super) asks: Option<Question>,
    pub(super) shows_help: bool,
}

/// By what models are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// As the engine has them.
    #[default]
    Engine,
    Name,
    Size,
    Idle,
    Requests,
}

/// A question that is answered by y or n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) how: MoveKind,
    pub(super) model: String,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    Move(Question),
}

pub(super) const HELP: [(&str, &str); 8] = [
    ("up, down (k, j)", "select a model"),
    ("s", "sort models: as the engine has them, by name, size, idle time, open requests"),
    ("o", "offload the selected model: off the GPU, its weights stay in the host's memory"),
    ("p", "preheat it: onto a GPU before a request needs it"),
    ("r", "release it: out of all memory; the next request loads it again"),
    ("y, n", "answer a question; nothing is moved without y"),
    ("?", "this help"),
    ("q, Esc, Ctrl-C", "end"),
];

impl Order {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Engine => "as served",
            Self::Name => "name",
            Self::Size => "size",
            Self::Idle => "idle",
            Self::Requests => "requests",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Engine => Self::Name,
            Self::Name => Self::Size,
            Self::Size => Self::Idle,
            Self::Idle => Self::Requests,
            Self::Requests => Self::Engine,
        }
    }
}

impl Controls {
    /// The models in the order that was chosen.
    pub(super) fn sorted<'a>(&self, models: &'a [ModelReport]) -> Vec<&'a ModelReport> {
        let mut sorted: Vec<&ModelReport> = models.iter().collect();
        match self.order {
            Order::Engine => {}
            Order::Name => sorted.sort_by(|a, b| a.name.cmp(&b.name)),
            Order::Size => sorted.sort_by_key(|model| std::cmp::Reverse(model.bytes)),
            Order::Idle => sorted.sort_by(|a, b| b.idle_s.total_cmp(&a.idle_s)),
            Order::Requests => sorted.sort_by_key(|model| std::cmp::Reverse(model.requests)),
        }
        sorted
    }

    /// The place of the selected model among the sorted ones.
    pub(super) fn place(&self, sorted: &[&ModelReport]) -> usize {
        let is_meant = |model: &&ModelReport| Some(&model.name) == self.selected.as_ref();
        sorted.iter().position(is_meant).unwrap_or(0)
    }

    pub(super) fn press(&mut self, key: KeyEvent, models: &[ModelReport]) -> Option<Action> {
        let is_end = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if is_end {
            return Some(Action::Quit);
        }
        if let Some(question) = self.asks.take() {
            return match key.code {
                KeyCode::Char('y' | 'Y') => Some(Action::Move(question)),
                // Any other key means no.
                _ => None,
            };
        }
        if std::mem::take(&mut self.shows_help) {
            return (key.code == KeyCode::Char('q')).then_some(Action::Quit);
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Some(Action::Quit),
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Up | KeyCode::Char('k') => self.step(models, -1),
            KeyCode::Down | KeyCode::Char('j') => self.step(models, 1),
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('o') => self.ask(MoveKind::Offload, models),
            KeyCode::Char('p') => self.ask(MoveKind::Preheat, models),
            KeyCode::Char('r') => self.ask(MoveKind::Release, models),
            _ => {}
        }
        None
    }

    fn step(&mut self, models: &[ModelReport], by: isize) {
        let sorted = self.sorted(models);
        let last = sorted.len().saturating_sub(1);
        let place = self.place(&sorted).saturating_add_signed(by).min(last);
        self.selected = sorted.get(place).map(|model| model.name.clone());
    }

    fn ask(&mut self, how: MoveKind, models: &[ModelReport]) {
        let sorted = self.sorted(models);
        let model = sorted.get(self.place(&sorted)).map(|model| model.name.clone());
        self.asks = model.map(|model| Question { how, model });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::gpu::status::tests::engine;

    fn press(controls: &mut Controls, code: KeyCode) -> Option<Action> {
        controls.press(KeyEvent::from(code), &engine().models)
    }

    fn selected(controls: &Controls) -> String {
        let models = engine().models;
        let sorted = controls.sorted(&models);
        sorted[controls.place(&sorted)].name.clone()
    }

    #[test]
    fn nothing_is_moved_without_a_yes() {
        let mut controls = Controls::default();
        press(&mut controls, KeyCode::Down);
        for refusal in [KeyCode::Char('n'), KeyCode::Esc, KeyCode::Char('q'), KeyCode::Enter] {
            assert_eq!(press(&mut controls, KeyCode::Char('o')), None);
            assert!(controls.asks.is_some());
            assert_eq!((press(&mut controls, refusal), &controls.asks), (None, &None));
        }
        for (key, how) in [('o', MoveKind::Offload), ('p', MoveKind::Preheat), ('r', MoveKind::Release)] {
            press(&mut controls, KeyCode::Char(key));
            let question = Question { how, model: "org/other".to_owned() };
            assert_eq!(press(&mut controls, KeyCode::Char('y')), Some(Action::Move(question)));
        }
    }

    #[test]
    fn the_selection_stays_with_its_model_when_the_order_changes() {
        let mut controls = Controls::default();
        assert_eq!(selected(&controls), "all-MiniLM-L6-v2");
        press(&mut controls, KeyCode::Up);
        assert_eq!(selected(&controls), "all-MiniLM-L6-v2", "there is none above the first");
        (0..5).for_each(|_| drop(press(&mut controls, KeyCode::Down)));
        assert_eq!(selected(&controls), "org/other", "nor one below the last");
        for word in ["name", "size", "idle", "requests", "as served"] {
            press(&mut controls, KeyCode::Char('s'));
            assert_eq!((controls.order.word(), selected(&controls).as_str()), (word, "org/other"));
        }
        controls.order = Order::Idle;
        assert_eq!(controls.sorted(&engine().models)[0].name, "org/other", "the longest idle one is the first");
    }

    #[test]
    fn ctrl_c_ends_it_in_every_state() {
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for before in ["", "?", "o"] {
            let mut controls = Controls::default();
            before.chars().for_each(|key| drop(press(&mut controls, KeyCode::Char(key))));
            assert_eq!(controls.press(ctrl_c, &engine().models), Some(Action::Quit));
        }
        let mut controls = Controls::default();
        assert_eq!(press(&mut controls, KeyCode::Esc), Some(Action::Quit));
        // Without models there is nothing to ask about.
        assert_eq!((controls.press(KeyEvent::from(KeyCode::Char('o')), &[]), &controls.asks), (None, &None));
    }
}
