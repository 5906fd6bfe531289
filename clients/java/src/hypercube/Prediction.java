package hypercube;

import java.util.Map;

/** Click probabilities of one request, and the version of graph and tables that made them. */
public final class Prediction {
  public final double[] probabilities;
  public final String model;
  public final String version;
  public final String tablesVersion;
  /** Lookups whose feature is not in the table. */
  public final int unseen;
  /** Lookups that no replica answered; the default row was used. */
  public final int unavailable;
  public final boolean degraded;
  /** Variant by experiment, where experiments are running. */
  public final Map<String, String> experiments;

  Prediction(
      double[] probabilities,
      String model,
      String version,
      Map<?, ?> counts,
      Map<String, String> experiments) {
    this.probabilities = probabilities;
    this.model = model;
    this.version = version;
    this.tablesVersion = Json.field(counts, "tables_version", String.class);
    this.unseen = Json.field(counts, "unseen", Number.class).intValue();
    this.unavailable = Json.field(counts, "unavailable", Number.class).intValue();
    this.degraded = Json.field(counts, "degraded", Boolean.class);
    this.experiments = experiments;
  }
}
