// Colours of values on the map: apart from each other in light and dark, also for most who see fewer colours.
// The style sheet has the same ones by number.

export const PALETTE = ["#4f46e5", "#d97706", "#0d9488", "#db2777", "#65a30d", "#0284c7", "#a855f7", "#b45309", "#059669", "#dc2626", "#64748b", "#ca8a04"];
