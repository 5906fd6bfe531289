package hypercube;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Runs the shared cases with this client: java hypercube.Conformance CASES URL VECTORS. Prints a JSON line per case.
 */
final class Conformance {
  private Conformance() {}

  @SuppressWarnings("unchecked")
  private static <T> T get(Map<?, ?> map, String name, T fallback) {
    Object value = map.get(name);
    return value == null ? fallback : (T) value;
  }

  private static int countWrong(String path) throws Exception {
    int wrong = 0;
    for (Object element : (List<?>) Json.parse(Files.readString(Path.of(path)))) {
      Map<?, ?> v = (Map<?, ?>) element;
      long key =
          Hashing.hashKey(
              ((Number) v.get("slot")).longValue(),
              (String) v.get("feature"),
              (String) v.get("scheme"),
              Long.parseUnsignedLong((String) v.get("seed")),
              Long.parseUnsignedLong((String) v.get("modulo")));
      if (!Long.toUnsignedString(key).equals(v.get("key"))) wrong++;
    }
    return wrong;
  }

  @SuppressWarnings("unchecked")
  private static Prediction predict(Client client, Map<?, ?> test, Client.CallOptions call) throws Exception {
    Map<?, ?> input = (Map<?, ?>) test.get("input");
    switch ((String) test.get("call")) {
      case "rows": return client.predictRows((List<Map<String, ?>>) input.get("rows"), call);
      case "tsv": return client.predictTsv(get(input, "text", "").repeat(get(input, "times", (Number) 1).intValue()), call);
      case "columns": return client.predictColumns((Map<String, List<?>>) input.get("columns"), call);
      default: return client.predictArrays(toKeys(input), toDense(input), call);
    }
  }

  private static long[][] toKeys(Map<?, ?> input) {
    List<?> rows = (List<?>) input.get("keys");
    long[][] keys = new long[rows.size()][];
    for (int i = 0; i < keys.length; i++) {
      keys[i] = ((List<?>) rows.get(i)).stream().mapToLong(key -> Long.parseUnsignedLong((String) key)).toArray();
    }
    return keys;
  }

  private static float[][] toDense(Map<?, ?> input) {
    List<?> rows = (List<?>) input.get("dense");
    float[][] dense = new float[rows.size()][];
    for (int i = 0; i < dense.length; i++) {
      List<?> row = (List<?>) rows.get(i);
      dense[i] = new float[row.size()];
      for (int j = 0; j < row.size(); j++) {
        dense[i][j] = row.get(j) == null ? Float.NaN : ((Number) row.get(j)).floatValue();
      }
    }
    return dense;
  }

  private static List<Double> toList(double[] values) {
    List<Double> list = new ArrayList<>();
    for (double value : values) list.add(value);
    return list;
  }

  private static Map<String, Object> run(Map<?, ?> test, String url, String vectors) throws Exception {
    Map<String, Object> result = new LinkedHashMap<>();
    result.put("name", test.get("name"));
    if ("vectors".equals(test.get("call"))) {
      result.put("wrong", countWrong(vectors));
      return result;
    }
    Map<?, ?> settings = get(test, "client", Map.of());
    Client.Options options = new Client.Options();
    options.model = get(settings, "model", "");
    options.version = get(settings, "version", "");
    options.label = get(settings, "label", "");
    options.timeoutMs = get(settings, "timeout_ms", (Number) 1000).longValue();
    options.retriesMax = get(settings, "retries_max", (Number) 2).intValue();
    options.compress = get(settings, "compress", false);
    options.apiKey = get(settings, "api_key", "");
    Client client = new Client(List.of(url + "/" + get(test, "scenario", "plain")), options);
    Map<?, ?> callSettings = get(test, "options", Map.of());
    Client.CallOptions call = new Client.CallOptions();
    call.experimentKey = get(callSettings, "experiment_key", "");
    call.priority = get(callSettings, "priority", (Number) (-1)).intValue();
    List<String> codes = new ArrayList<>();
    int repeat = get(test, "repeat", (Number) 1).intValue();
    for (int i = 0; i < repeat; i++) {
      try {
        if ("hash_row".equals(test.get("call"))) {
          List<String> features = get((Map<?, ?>) test.get("input"), "features", List.of());
          List<String> keys = new ArrayList<>();
          for (long key : client.features().hashRow(features)) keys.add(Long.toUnsignedString(key));
          result.put("keys", keys);
        } else {
          Prediction prediction = predict(client, test, call);
          result.put("probabilities", toList(prediction.probabilities));
          result.put("version", prediction.version);
          result.put("unseen", prediction.unseen);
          result.put("degraded", prediction.degraded);
          result.put("experiments", prediction.experiments);
        }
        codes.add("OK");
      } catch (HypercubeException error) {
        codes.add(error.code());
      } catch (RuntimeException error) { // no client throws others: the test shows them
        codes.add(error.toString());
      }
    }
    result.put("codes", codes);
    return result;
  }

  public static void main(String[] args) throws Exception {
    Map<?, ?> cases = (Map<?, ?>) Json.parse(Files.readString(Path.of(args[0])));
    for (Object test : (List<?>) cases.get("cases")) {
      System.out.println(Json.write(run((Map<?, ?>) test, args[1], args[2])));
    }
  }
}
