// Kstatus prints the status that kstatus computes of the object on its standard input, as "Current: message".
package main

import (
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	object := &unstructured.Unstructured{}
	if err == nil {
		err = object.UnmarshalJSON(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	result, err := status.Compute(object)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%s: %s\n", result.Status, result.Message)
}
