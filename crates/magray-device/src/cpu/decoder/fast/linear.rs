//! A linear layer in panels: its matrices one after the other, each in its own form.

use super::form::{Form, PANEL};
use super::panels::Panels;
use crate::BlockLinear;
use crate::cpu::{Region, ThreadPool};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Weights and bias of a linear layer in panels.
pub(in crate::cpu::decoder) struct PanelLinear {
    parts: Vec<Panels>,
    units: Vec<Unit>,
    bias: Vec<f32>,
    inputs: usize,
    outputs: usize,
    /// Where each thread began to read the layer that was multiplied after this one: it is fetched while this one ends.
    pub(super) followers: Arc<[AtomicUsize]>,
}

/// One panel.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    part: u32,
    panel: u32,
    /// Its first output.
    pub(super) output: u32,
    /// How many it has.
    pub(super) columns: u32,
}

impl PanelLinear {
    /// What a layer takes in panels.
    pub(in crate::cpu::decoder) fn bytes_of(source: &BlockLinear) -> u64 {
        let panels: usize = source.parts.iter().map(Panels::bytes_of).sum();
        (panels + 4 * source.bias.len()) as u64
    }

    pub(in crate::cpu::decoder) fn pack(source: BlockLinear, pool: &ThreadPool, region: &Region) -> Self {
        let (inputs, outputs) = (source.inputs(), source.outputs());
        let parts: Vec<Panels> = source.parts.iter().map(|part| Panels::pack(part, pool, region)).collect();
        let mut units = Vec::new();
        let mut first = 0;
        for (part, panels) in parts.iter().enumerate() {
            for panel in 0..panels.count() {
                let columns = PANEL.min(panels.outputs() - panel * PANEL);
                let unit = [part, panel, first + panel * PANEL, columns];
                let [part, panel, output, columns] = unit.map(|number| number as u32);
                units.push(Unit { part, panel, output, columns });
            }
            first += panels.outputs();
        }
        assert!(u32::try_from(outputs).is_ok(), "fewer outputs than 32 bits count");
        let followers = (0..pool.threads()).map(|_| AtomicUsize::new(0)).collect();
        Self { parts, units, bias: source.bias, inputs, outputs, followers }
    }

    pub(in crate::cpu::decoder) fn inputs(&self) -> usize {
        self.inputs
    }

    pub(in crate::cpu::decoder) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Groups of inputs.
    pub(super) fn groups(&self) -> usize {
        self.parts.first().map_or(0, Panels::groups)
    }

    pub(super) fn units(&self) -> &[Unit] {
        &self.units
    }

    pub(super) fn panel(&self, unit: Unit) -> (Form, &[u8]) {
        let part = &self.parts[unit.part as usize];
        (part.form(), part.panel(unit.panel as usize))
    }

    /// The bias of a unit's outputs, or none.
    pub(super) fn bias(&self, unit: Unit) -> &[f32] {
        let (output, columns) = (unit.output as usize, unit.columns as usize);
        if self.bias.is_empty() { &[] } else { &self.bias[output..output + columns] }
    }

    /// Whether any weights are multiplied as bytes.
    pub(super) fn has_bytes(&self) -> bool {
        self.parts.iter().any(|part| part.form() != Form::Bf16)
    }

    /// Bytes of a panel, of those that are alike in most layers.
    pub(super) fn panel_bytes(&self) -> usize {
        self.parts.iter().map(Panels::panel_bytes).max().unwrap_or(0)
    }

    /// Whether the outputs' halves have panels of their own, the first of one beside the first of the other.
    pub(super) fn has_halves(&self) -> bool {
        let (first, second) = self.units.split_at(self.units.len() / 2);
        let half = self.outputs / 2;
        first.len() == second.len()
            && first
                .iter()
                .zip(second)
                .all(|(one, other)| one.output as usize + half == other.output as usize && one.columns == other.columns)
    }

    /// Writes the weights of an output.
    pub(in crate::cpu::decoder) fn read(&self, output: usize, row: &mut [f32]) {
        let at = self.units.partition_point(|unit| (unit.output + unit.columns) as usize <= output);
        let unit = self.units[at];
        let within = output - unit.output as usize;
        self.parts[unit.part as usize].read(unit.panel as usize * PANEL + within, row);
    }
}
