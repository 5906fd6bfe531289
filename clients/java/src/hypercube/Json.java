package hypercube;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A small JSON reader and writer, so that the client needs no other library: objects are maps, arrays lists, numbers
 * doubles.
 */
final class Json {
  private static final int DEPTH_MAX = 100;
  private final String text;
  private int at;

  private Json(String text) {
    this.text = text;
  }

  /** @throws IllegalArgumentException if the text is not JSON */
  static Object parse(String text) {
    Json reader = new Json(text);
    Object value = reader.readValue(0);
    reader.skipSpace();
    if (reader.at != text.length()) throw reader.problem("unexpected text after the value");
    return value;
  }

  /** @throws IllegalArgumentException if the object has no such field, or one of another type */
  static <T> T field(Map<?, ?> object, String name, Class<T> type) {
    Object value = object.get(name);
    if (type.isInstance(value)) return type.cast(value);
    throw new IllegalArgumentException("JSON, field " + name + ": expected " + type.getSimpleName());
  }

  /** @throws IllegalArgumentException if the value has another type */
  static <T> T cast(Object value, Class<T> type) {
    if (type.isInstance(value)) return type.cast(value);
    throw new IllegalArgumentException("JSON: expected " + type.getSimpleName());
  }

  private IllegalArgumentException problem(String what) {
    return new IllegalArgumentException("JSON, position " + at + ": " + what);
  }

  private void skipSpace() {
    while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) at++;
  }

  private char next() {
    if (at >= text.length()) throw problem("unexpected end");
    return text.charAt(at++);
  }

  private Object readValue(int depth) {
    if (depth > DEPTH_MAX) throw problem("nested too deeply");
    skipSpace();
    char first = next();
    switch (first) {
      case '{': return readObject(depth);
      case '[': return readArray(depth);
      case '"': return readString();
      case 't': return readWord("true", Boolean.TRUE);
      case 'f': return readWord("false", Boolean.FALSE);
      case 'n': return readWord("null", null);
      default:
        int start = at - 1;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) at++;
        try {
          return Double.valueOf(text.substring(start, at));
        } catch (NumberFormatException error) {
          throw problem("expected a value");
        }
    }
  }

  private Object readWord(String word, Object value) {
    if (!text.startsWith(word, at - 1)) throw problem("expected " + word);
    at += word.length() - 1;
    return value;
  }

  private Map<String, Object> readObject(int depth) {
    Map<String, Object> object = new LinkedHashMap<>();
    skipSpace();
    if (at < text.length() && text.charAt(at) == '}') {
      at++;
      return object;
    }
    while (true) {
      skipSpace();
      if (next() != '"') throw problem("expected a field name");
      String name = readString();
      skipSpace();
      if (next() != ':') throw problem("expected :");
      object.put(name, readValue(depth + 1));
      skipSpace();
      char separator = next();
      if (separator == '}') return object;
      if (separator != ',') throw problem("expected , or }");
    }
  }

  private List<Object> readArray(int depth) {
    List<Object> array = new ArrayList<>();
    skipSpace();
    if (at < text.length() && text.charAt(at) == ']') {
      at++;
      return array;
    }
    while (true) {
      array.add(readValue(depth + 1));
      skipSpace();
      char separator = next();
      if (separator == ']') return array;
      if (separator != ',') throw problem("expected , or ]");
    }
  }

  private String readString() {
    StringBuilder out = new StringBuilder();
    while (true) {
      char c = next();
      if (c == '"') return out.toString();
      if (c != '\\') {
        out.append(c);
        continue;
      }
      char escaped = next();
      int simple = "bfnrt".indexOf(escaped);
      if (simple >= 0) out.append("\b\f\n\r\t".charAt(simple));
      else if (escaped == 'u') {
        if (at + 4 > text.length()) throw problem("unexpected end");
        out.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
        at += 4;
      } else out.append(escaped);
    }
  }

  static String write(Object value) {
    StringBuilder out = new StringBuilder();
    write(value, out);
    return out.toString();
  }

  private static void write(Object value, StringBuilder out) {
    if (value instanceof Map) {
      char separator = '{';
      for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
        out.append(separator);
        writeString((String) entry.getKey(), out);
        out.append(':');
        write(entry.getValue(), out);
        separator = ',';
      }
      out.append(separator == '{' ? "{}" : "}");
    } else if (value instanceof Iterable) {
      char separator = '[';
      for (Object element : (Iterable<?>) value) {
        out.append(separator);
        write(element, out);
        separator = ',';
      }
      out.append(separator == '[' ? "[]" : "]");
    } else if (value instanceof Number) {
      double number = ((Number) value).doubleValue();
      // NaN is a missing value, which JSON writes as null.
      if (Double.isNaN(number)) out.append("null");
      else if (Double.isInfinite(number)) throw new IllegalArgumentException("expected a finite number, got " + value);
      else out.append(value);
    } else if (value == null || value instanceof Boolean) {
      out.append(value);
    } else {
      writeString(value.toString(), out);
    }
  }

  private static void writeString(String text, StringBuilder out) {
    out.append('"');
    for (int i = 0; i < text.length(); i++) {
      char c = text.charAt(i);
      if (c == '"' || c == '\\') out.append('\\').append(c);
      else if (c < 0x20) out.append(String.format("\\u%04x", (int) c));
      else out.append(c);
    }
    out.append('"');
  }
}
