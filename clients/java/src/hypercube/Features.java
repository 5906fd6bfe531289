package hypercube;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Slots, dense features and hashing of a model, as the server describes them. */
public final class Features {
  private final Map<?, ?> description;
  /** Names of the slots (categorical features), in the order of a row. */
  public final List<String> slots = new ArrayList<>();
  /** Names of the dense features, in the order of a row. */
  public final List<String> dense = new ArrayList<>();

  private final String clickOutput;
  private final int clickColumn;

  /** @throws IllegalArgumentException if the description lacks what calls need */
  Features(Map<?, ?> description) {
    this.description = description;
    for (Object element : Json.field(description, "slots", List.class)) {
      Map<?, ?> slot = Json.cast(element, Map.class);
      slots.add(Json.field(slot, "name", String.class));
      Json.field(slot, "index", Number.class);
    }
    if (description.get("dense") != null) {
      for (Object feature : Json.field(Json.field(description, "dense", Map.class), "features", List.class)) {
        dense.add(Json.field(Json.cast(feature, Map.class), "name", String.class));
      }
    }
    Json.field(Json.field(description, "hash", Map.class), "scheme", String.class);
    Map<?, ?> click = Json.field(description, "click", Map.class);
    clickOutput = Json.field(click, "output", String.class);
    clickColumn = click.get("column") == null ? 0 : Json.field(click, "column", Number.class).intValue();
  }

  String clickOutput() {
    return clickOutput;
  }

  int clickColumn() {
    return clickColumn;
  }

  /**
   * The keys of a row, unsigned.
   *
   * @param features one value per slot in the order of `slots`; null or "" is missing
   * @throws IllegalArgumentException also for slots that pool several values: they have no single key
   */
  public long[] hashRow(List<String> features) {
    List<?> described = (List<?>) description.get("slots");
    if (features.size() != described.size()) {
      throw new IllegalArgumentException(
          "expected " + described.size() + " features, one per slot, got " + features.size());
    }
    Map<?, ?> hash = (Map<?, ?>) description.get("hash");
    long seed = toLong(hash.get("seed"));
    long[] keys = new long[features.size()];
    for (int i = 0; i < keys.length; i++) {
      Map<?, ?> slot = (Map<?, ?>) described.get(i);
      if (slot.containsKey("pooling")) {
        throw new IllegalArgumentException(
            "slot " + slot.get("name") + " pools several values: it has no single key");
      }
      long modulo = toLong(slot.containsKey("modulo") ? slot.get("modulo") : hash.get("modulo"));
      String feature = features.get(i);
      if (feature == null || feature.isEmpty()) {
        feature = slot.containsKey("missing") ? (String) slot.get("missing") : "";
      }
      long index = ((Number) slot.get("index")).longValue();
      keys[i] = Hashing.hashKey(index, feature, (String) hash.get("scheme"), seed, modulo);
    }
    return keys;
  }

  private static long toLong(Object text) {
    return text == null ? 0 : Long.parseUnsignedLong((String) text);
  }
}
