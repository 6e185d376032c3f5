//! The policies that a pool can name, with their parameters.

use crate::policy::{
    BoundedLoadsParameters, CacheParameters, EwmaParameters, LacpParameters, LardParameters,
    LardRParameters, MaglevParameters, RentParameters, XlardRParameters,
};

/// A policy and its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyConfig {
    /// `round-robin`: weighted and smooth.
    RoundRobin,
    /// `least-connections`: weighted, as LVS's WLC.
    LeastConnections,
    /// `hrw`: highest random weight of the URL \[LACP03\].
    Hrw,
    /// `lard`: an object stays until its backend is overloaded (Pai et al.).
    Lard(LardParameters),
    /// `lard-r`: with sets of backends for hot objects (Pai et al.).
    LardR(LardRParameters),
    /// `xlard-r`: with the costs of handoffs and disks \[LVSCAD07 §5.2\].
    XlardR(XlardRParameters),
    /// `cawll`: least cost \[LVSCAD07 §5.1\].
    Cawll,
    /// `cahrd`: CAWLL for what is dynamic, xLARD/R for what is not \[LVSCAD07 §5.3\].
    Cahrd(XlardRParameters),
    /// `cap`: round robin within each class \[LVSCAD07 §2.3\].
    Cap,
    /// `cache-prediction`: who probably has it in memory \[LACP03\].
    CachePrediction(CacheParameters),
    /// `lacp`: HRW, cache prediction or least connections, by load \[LACP03\].
    Lacp(LacpParameters),
    /// `maglev`: hashing by a table (Eisenbud et al.).
    Maglev(MaglevParameters),
    /// `bounded-loads`: hashing as long as loads are even (Mirrokni et al.).
    BoundedLoads(BoundedLoadsParameters),
    /// `two-choices`: the better of two at random (Mitzenmacher).
    TwoChoices,
    /// `ewma`: least latency, peaks first (Finagle).
    Ewma(EwmaParameters),
    /// `rent`: least work, with a price for memory; ours.
    Rent(RentParameters),
}

impl PolicyConfig {
    /// Which policy.
    pub fn kind(&self) -> PolicyKind {
        match self {
            PolicyConfig::RoundRobin => PolicyKind::RoundRobin,
            PolicyConfig::LeastConnections => PolicyKind::LeastConnections,
            PolicyConfig::Hrw => PolicyKind::Hrw,
            PolicyConfig::Lard(_) => PolicyKind::Lard,
            PolicyConfig::LardR(_) => PolicyKind::LardR,
            PolicyConfig::XlardR(_) => PolicyKind::XlardR,
            PolicyConfig::Cawll => PolicyKind::Cawll,
            PolicyConfig::Cahrd(_) => PolicyKind::Cahrd,
            PolicyConfig::Cap => PolicyKind::Cap,
            PolicyConfig::CachePrediction(_) => PolicyKind::CachePrediction,
            PolicyConfig::Lacp(_) => PolicyKind::Lacp,
            PolicyConfig::Maglev(_) => PolicyKind::Maglev,
            PolicyConfig::BoundedLoads(_) => PolicyKind::BoundedLoads,
            PolicyConfig::TwoChoices => PolicyKind::TwoChoices,
            PolicyConfig::Ewma(_) => PolicyKind::Ewma,
            PolicyConfig::Rent(_) => PolicyKind::Rent,
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
            PolicyKind::Lard => PolicyConfig::Lard(LardParameters::default()),
            PolicyKind::LardR => PolicyConfig::LardR(LardRParameters::default()),
            PolicyKind::XlardR => PolicyConfig::XlardR(XlardRParameters::default()),
            PolicyKind::Cawll => PolicyConfig::Cawll,
            PolicyKind::Cahrd => PolicyConfig::Cahrd(XlardRParameters::default()),
            PolicyKind::Cap => PolicyConfig::Cap,
            PolicyKind::CachePrediction => {
                PolicyConfig::CachePrediction(CacheParameters::default())
            }
            PolicyKind::Lacp => PolicyConfig::Lacp(LacpParameters::default()),
            PolicyKind::Maglev => PolicyConfig::Maglev(MaglevParameters::default()),
            PolicyKind::BoundedLoads => {
                PolicyConfig::BoundedLoads(BoundedLoadsParameters::default())
            }
            PolicyKind::TwoChoices => PolicyConfig::TwoChoices,
            PolicyKind::Ewma => PolicyConfig::Ewma(EwmaParameters::default()),
            PolicyKind::Rent => PolicyConfig::Rent(RentParameters::default()),
        }
    }
}

/// Which policy, without parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// `round-robin`.
    RoundRobin,
    /// `least-connections`.
    LeastConnections,
    /// `hrw`.
    Hrw,
    /// `lard`.
    Lard,
    /// `lard-r`.
    LardR,
    /// `xlard-r`.
    XlardR,
    /// `cawll`.
    Cawll,
    /// `cahrd`.
    Cahrd,
    /// `cap`.
    Cap,
    /// `cache-prediction`.
    CachePrediction,
    /// `lacp`.
    Lacp,
    /// `maglev`.
    Maglev,
    /// `bounded-loads`.
    BoundedLoads,
    /// `two-choices`.
    TwoChoices,
    /// `ewma`.
    Ewma,
    /// `rent`, where a pool says nothing.
    #[default]
    Rent,
}

impl PolicyKind {
    /// Every policy, in the order of the documentation.
    pub const ALL: [PolicyKind; 16] = [
        PolicyKind::RoundRobin,
        PolicyKind::LeastConnections,
        PolicyKind::Hrw,
        PolicyKind::Lard,
        PolicyKind::LardR,
        PolicyKind::XlardR,
        PolicyKind::Cawll,
        PolicyKind::Cahrd,
        PolicyKind::Cap,
        PolicyKind::CachePrediction,
        PolicyKind::Lacp,
        PolicyKind::Maglev,
        PolicyKind::BoundedLoads,
        PolicyKind::TwoChoices,
        PolicyKind::Ewma,
        PolicyKind::Rent,
    ];

    /// Its name in the file.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::RoundRobin => "round-robin",
            PolicyKind::LeastConnections => "least-connections",
            PolicyKind::Hrw => "hrw",
            PolicyKind::Lard => "lard",
            PolicyKind::LardR => "lard-r",
            PolicyKind::XlardR => "xlard-r",
            PolicyKind::Cawll => "cawll",
            PolicyKind::Cahrd => "cahrd",
            PolicyKind::Cap => "cap",
            PolicyKind::CachePrediction => "cache-prediction",
            PolicyKind::Lacp => "lacp",
            PolicyKind::Maglev => "maglev",
            PolicyKind::BoundedLoads => "bounded-loads",
            PolicyKind::TwoChoices => "two-choices",
            PolicyKind::Ewma => "ewma",
            PolicyKind::Rent => "rent",
        }
    }
}

/// What binds a client to a backend, in front of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stickiness {
    /// `{ cookie = "SRV" }`, as the server sets it.
    Cookie {
        /// Case counts (RFC 6265 §4.1).
        name: String,
        /// What its value is.
        value: CookieValue,
    },
    /// `{ header = "X-Tenant" }`: its value is hashed. In any case.
    Header(String),
    /// `"source"`: the client's address is hashed, of IPv6 its upper 64 bits.
    Source,
}

/// What a cookie's value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CookieValue {
    /// `"name"`: the backend's, or something that ends with a dot and it, as Tomcat's
    /// jvmRoute and Apache's `route` have it.
    #[default]
    Name,
    /// `"hash"`: anything; it is hashed.
    Hash,
}

/// How the cost of a request is known before it is placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Costs {
    /// `"learnt"`: from how long requests of its kind took.
    #[default]
    Learnt,
    /// `"packets"`: from the packets of answers to requests of its kind
    /// \[LVSCAD07 §5.1\].
    Packets,
    /// By [`crate::policy::Class`], in packets, in the order of `Class::ALL`.
    Fixed([u32; 5]),
}

impl Costs {
    /// Packets of the paper's mean file, 13 kB \[LVSCAD07 §6.1\].
    pub const STATIC_PACKETS: u32 = 9;
}
