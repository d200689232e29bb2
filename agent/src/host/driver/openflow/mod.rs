//! OpenFlow 1.5 (ONF TS-025) with the extensions of Open vSwitch, over the management socket of a bridge.
