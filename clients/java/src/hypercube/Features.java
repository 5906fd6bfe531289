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

  Features(Map<?, ?> description) {
    this.description = description;
    for (Object slot : (List<?>) description.get("slots")) slots.add((String) ((Map<?, ?>) slot).get("name"));
    Map<?, ?> denseInput = (Map<?, ?>) description.get("dense");
    if (denseInput == null) return;
    for (Object feature : (List<?>) denseInput.get("features")) dense.add((String) ((Map<?, ?>) feature).get("name"));
  }

  String clickOutput() {
    return (String) ((Map<?, ?>) description.get("click")).get("output");
  }

  int clickColumn() {
    Object column = ((Map<?, ?>) description.get("click")).get("column");
    return column == null ? 0 : ((Number) column).intValue();
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
