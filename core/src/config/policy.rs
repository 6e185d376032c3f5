//! The policies that a pool can name, with their parameters.

/// A policy and its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyConfig {
    /// `round-robin`, weighted and smooth.
    RoundRobin,
    /// `least-connections`, weighted.
    LeastConnections,
    /// `hrw`: highest random weight of the URL \[LACP03\].
    Hrw,
}

impl PolicyConfig {
    /// Which policy.
    pub fn kind(&self) -> PolicyKind {
        match self {
            PolicyConfig::RoundRobin => PolicyKind::RoundRobin,
            PolicyConfig::LeastConnections => PolicyKind::LeastConnections,
            PolicyConfig::Hrw => PolicyKind::Hrw,
        }
    }

    /// Its name in the file.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }
}

/// With the parameters' defaults.
impl From<PolicyKind> for PolicyConfig {
    fn from(kind: PolicyKind) -> Self {
        match kind {
            PolicyKind::RoundRobin => PolicyConfig::RoundRobin,
            PolicyKind::LeastConnections => PolicyConfig::LeastConnections,
            PolicyKind::Hrw => PolicyConfig::Hrw,
        }
    }
}

/// Which policy, without parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// `round-robin`.
    RoundRobin,
    /// `least-connections`.
    LeastConnections,
    /// `hrw`.
    Hrw,
}

impl PolicyKind {
    /// Every policy, in the order of the documentation.
    pub const ALL: [PolicyKind; 3] = [
        PolicyKind::RoundRobin,
        PolicyKind::LeastConnections,
        PolicyKind::Hrw,
    ];

    /// Its name in the file.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::RoundRobin => "round-robin",
            PolicyKind::LeastConnections => "least-connections",
            PolicyKind::Hrw => "hrw",
        }
    }
}
