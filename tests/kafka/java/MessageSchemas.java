import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;

import java.lang.reflect.Modifier;
import java.util.Map;

/**
 * Print the schemas of Kafka's generated message classes, whose names are the arguments, as one line of JSON.
 *
 * <p>The JSON has the fields of each version in order, with their wire types, and the defaults of a new object.
 */
public final class MessageSchemas {
    public static void main(String[] classNames) throws Exception {
        ObjectNode messages = Driver.object();
        for (String className : classNames) {
            messages.set(className, message(Class.forName(className)));
        }
        System.out.println(messages);
    }

    private static JsonNode message(Class<?> message) throws Exception {
        ObjectNode versions = Driver.object();
        Schema[] schemas = (Schema[]) message.getField("SCHEMAS").get(null);
        for (int version = 0; version < schemas.length; version++) {
            // Versions below the lowest supported version have no schema.
            if (schemas[version] != null) {
                versions.set(Integer.toString(version), struct(schemas[version]));
            }
        }
        ObjectNode defaults = Driver.object();
        defaults.set("", defaults(message));
        for (Class<?> nested : message.getDeclaredClasses()) {
            defaults.set(nested.getSimpleName(), defaults(nested));
        }
        ObjectNode described = Driver.object();
        described.set("versions", versions);
        described.set("defaults", defaults);
        return described;
    }

    /** Return the fields of a struct, tagged fields last. A struct with a section for tagged fields is
    flexible. */
    private static ObjectNode struct(Schema schema) {
        boolean flexible = false;
        ArrayNode fields = Driver.array();
        for (BoundField field : schema.fields()) {
            if (field.def.type instanceof TaggedFields) {
                flexible = true;
                for (Map.Entry<Integer, Field> tagged : ((TaggedFields) field.def.type).fields().entrySet()) {
                    fields.add(field(tagged.getValue()).put("tag", tagged.getKey()));
                }
            } else {
                fields.add(field(field.def));
            }
        }
        ObjectNode struct = Driver.object().put("flexible", flexible);
        struct.set("fields", fields);
        return struct;
    }

    private static ObjectNode field(Field field) {
        ObjectNode described = Driver.object().put("name", field.name);
        Type type = field.type;
        if (type.isArray()) {
            // The simple class name distinguishes a compact array from a non-compact array.
            described.put("array", type.getClass().getSimpleName()).put("nullable", type.isNullable());
            type = type.arrayElementType().get();
        }
        if (type instanceof Schema) {
            described.set("struct", struct((Schema) type));
        } else {
            described.put("type", type.toString());
        }
        return described;
    }

    private static ObjectNode defaults(Class<?> message) throws Exception {
        ObjectNode defaults = Driver.object();
        Object fresh = message.getConstructor().newInstance();
        for (java.lang.reflect.Field field : message.getDeclaredFields()) {
            boolean holdsValue = field.getType().isPrimitive() || field.getType() == String.class;
            if (!Modifier.isStatic(field.getModifiers()) && holdsValue) {
                field.setAccessible(true);
                defaults.put(field.getName(), String.valueOf(field.get(fresh)));
            }
        }
        return defaults;
    }
}
